"""The pack's own socket types."""

from comfy_api.latest import io

LLLA = io.Custom("BAYESDIFF_LLLA")  # bayesdiff_core.llla.Llla
TRAJECTORY = io.Custom("BAYESDIFF_TRAJECTORY")  # bayesdiff_core.trajectory.Trajectory
