"""The method of BayesDiff (Kou et al., ICLR 2024), with no host in it: torch only.

Notation, one frame for every model:

    sigma        noise level; falls along the sampler to 0
    x            state. eps, v and EDM models: x = x0 + sigma eps (the paper's x_t divided by
                 alpha_t; its sigma_t / alpha_t is our sigma). Flows: x = (1 - sigma) x0 + sigma n
    denoised     D(x, sigma), what the host's models return
    d            (x - D) / sigma: the noise eps_t of an eps model, the velocity of a flow
    gamma^2      Var(d | x), the posterior predictive variance (eq. post-pred)
    E, Var       E(x_t), Var(x_t). In the paper's coordinates Var is alpha_t^2 times ours
    step         x' = a x + b d + c z; DDIM is a = 1, b = sigma' - sigma, c = 0

    posterior    LLLA: statistics, posterior, predictive variance, weight draws
    windows      the same statistics of a 3 x 3 convolution, without unfolding it
    llla         a fitted posterior as it travels: merged, seen with other settings, described
    rules        one step of each sampler
    schedules    which steps are uncertain
    bayesdiff    Algorithm 1 and 2 as printed
    moments      the same iteration, corrected
    deviations   the default: deviations carried beside an untouched picture
    trajectory   the record of a run, and trajectory variance
    continuous   the appendix's continuous-time expression, a diagnostic
"""
