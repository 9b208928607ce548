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

The paper, and where it is:

    section 3.1, A.4: LLLA             posterior.posterior (Full- and DiagonalPosterior)
      its GGN, over the data           posterior.FeatureStatistics, windows.WindowSums
      eq. post-pred, gamma^2           posterior.Predictive.variance
      a draw of the weights            posterior.Predictive.deviations
      with classifier-free guidance    posterior.guided_features
    eq. disc, Euler on the reverse SDE paper.rules.reverse_sde_euler, discretized_sde
    section 3.2: DDPM                  paper.rules.ddpm
    A.1: DDIM                          paper.rules.ddim, also Euler on a flow
      DPM-Solver-2, eq. dpm-solver     paper.rules.dpm_solver_2; eq. u|x in paper.algorithm
      Analytic-DPM                     paper.rules.analytic_dpm
      its Gamma_t                      noise_energy.NoiseEnergy, llla.noise_energy_of
    eq. exp-sde, var-ite, mc           paper.algorithm.bayesdiff
    Algorithm 1, Algorithm 2 (Skip)    paper.algorithm.bayesdiff
      its schedule t~                  skip_schedule.by_interval, by_list, by_text
    A.2: continuous time               paper.continuous.continuous_terms, a diagnostic
    section 4.1: the score, a sum      scores.total
      what mu + sigma drops            filtering.decide
    section 4.2: resampling x_t        resampling.offsets, trajectory.Trajectory.draws
      adjacent initial positions       resampling.adjacent

Beyond the paper:

    paper.moments.moment_iteration     the same iteration, corrected
    deviations.Deviations              the default: deviations carried beside an untouched picture
    paper.with_deviations              these under the paper's own rules, for benches
    trajectory                         the record of a run, and trajectory variance
    llla                               a posterior as it travels: merged, seen otherwise, described
    iteration                          how a network is asked, and noise that belongs to an image
    heatmap, smoothing                 from a variance to a picture
    scores, filtering, selection       numbers for an image, and what is kept by them
    evidence, doubt, learned           what else tells wrong pictures, and one score of several
    selfcheck, taught                  whether a score agrees with a person's choice, and one
                                       that learns it
    record                             what travels between nodes, and is no tuple
    transfer                           from the device to the CPU, in one go
    checks                             refusals
"""
