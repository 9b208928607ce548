"""Pages that runs of the tests write."""

import pytest

from tools import reports


@pytest.fixture
def written(tmp_path, monkeypatch):
    page = tmp_path / "full_size.md"
    monkeypatch.setattr(reports, "FULL_SIZE", page)

    def write(*tests):
        reports.write_full_size(list(tests), "comfyui-1.2.3")
        return page.read_text()
    return write


def result(model, outcome="passed", cost=1.0):
    tried = {"what": model, "parameters": 2e6, "network": 1e6, "size": 1e9, "picture": "8 x 8",
             "steps": 2, "costs": {"load": (cost, 3.0)}} if outcome == "passed" else {"what": model}
    return reports.Result(f"test[{model}]", outcome, 1.0, "" if tried.get("costs") else "no room",
                          tried)


def rows(page):
    return [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines()
            if line.startswith("| ")][1:]


def test_models_that_ran_earlier_stay_in_the_table_in_one_order(written):
    first, second, third, *rest = reports.FULL_SIZE_MODELS
    assert rows(written(result(third))) == [third]
    page = written(result(second), result(first))
    assert rows(page) == [first, second, third]
    assert f"Not run yet: {'; '.join(rest)}." in page


def test_a_model_that_runs_again_replaces_its_row_unless_it_is_skipped(written):
    model = reports.FULL_SIZE_MODELS[0]
    written(result(model, cost=1.5))
    assert "| 2.5 |" in written(result(model, cost=2.5))
    assert "| 2.5 |" in written(result(model, "skipped"))
    page = written(result(model, "failed"))
    assert "failed: no room" in page and "| 2.5 |" not in page


def test_tests_that_broke_off_leave_the_table_as_it_is(written, tmp_path):
    page = written(result(reports.FULL_SIZE_MODELS[0]))
    assert written(*reports.results(tmp_path / "nothing.xml")) == page
