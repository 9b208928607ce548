"""After the last step: noise is put on the finished picture again and the run's own model takes it
off, with the run's own prompts and guidance. What it would change tells what went wrong better than
the run alone does (benchmarks/bench_truth.py). The picture stays as it is."""

import torch

from ....bayesdiff_core import evidence
from ....bayesdiff_core.checks import BayesDiffError
from .. import memory, rescore
from ..network.feature_tap import FeatureTap
from .predictor import why_no_features
from .sampling import Observation, SamplerRun

LEAST_LEVEL = 1e-3  # a run that ends above it leaves no finished picture


def with_check(observe, check: str, tap: FeatureTap | None):
    """An observer's function, followed by the check that is asked for."""
    def observe_and_check(run: SamplerRun) -> tuple[torch.Tensor, Observation]:
        effort = evidence.effort(check, len(run.sigmas) - 1)
        run.progress.after = effort.calls if effort else 0
        x, seen = observe(run)
        why_not = _why_not(run, effort, check)
        if why_not:
            return x, seen._replace(notes=(*seen.notes, why_not))
        if effort is None:
            return x, seen

        def ask(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            with memory.advice(memory.EXTRA_CALLS):
                denoised = run.model(x, sigma, **run.extra_args)
            run.progress.tick()
            if tap:
                tap.take()  # nobody reads these features
            return denoised

        try:
            found = rescore.looked_at(ask, x, run.model_sampling, effort)
        except BayesDiffError as error:  # the picture is drawn, and not lost for that
            return x, seen._replace(notes=(*seen.notes, f"not checked: {error}"))
        except (LookupError, ValueError, TypeError, AssertionError) as error:
            if why_no_features(run.guider) is None:
                raise
            return x, seen._replace(notes=(*seen.notes, "not checked: the guider"
                                           f" {type(run.guider).__name__} does not answer at noise"
                                           f" levels between the run's ({error!r:.80})"))
        maps = torch.stack([found.maps[name] for name in evidence.CHECKS if name in found.maps])
        return x, seen._replace(trajectory=seen.trajectory._replace(checked=maps),
                                check_calls=effort.calls, notes=(*seen.notes, *found.notes))

    return observe_and_check


def _why_not(run: SamplerRun, effort: evidence.Effort | None, check: str) -> str | None:
    if effort is None:
        least = 2 * evidence.QUICK.calls
        return None if check == "off" else (
            f"not checked: auto needs at least {least} steps, so that the check adds at most half;"
            " choose quick to check anyway")
    if float(run.sigmas[-1]) > LEAST_LEVEL:
        return (f"not checked: the run ends at noise level {float(run.sigmas[-1]):.3g}, and only a"
                " finished picture can be checked")
    if rescore.levels_left_out(run.guider, effort):
        return "not checked: the prompts skip noise levels that the check needs"
    return None
