#!/usr/bin/env bash
# Ruckig takes `max_position` and `min_position`, calls the input valid, and plans a motion beyond them.
#
# Versions: ruckig 0.19.4; Python 3.11, Debian 12.
# Expected: position limits hold like those of velocity, acceleration and jerk; a motion that cannot keep them ends in
#   `Result.ErrorPositionalLimits`, which exists for it; or the fields are refused. A target velocity above `max_velocity`, for one, raises an error.
# Seen: the fields exist and keep what they are given. With limits of -0.5 and 0.5 a target of 1.0 is valid, is planned (`Result.Working`) and
#   reached. A joint that moves at 0.9 towards a target inside of its limits of -0.2 and 0.2 is planned to 0.26 and back, exactly as
#   without limits. One line of the project's description says that the fields are for its paid edition. `position_extrema` tells the truth.
# Date: 2026-11-30.
# Why it matters: Ruckig is what turns a policy's targets into smooth commands at the rate of an arm's controller, and a target beyond a limit, or
#   an overshoot at the end of a chunk, is where a joint meets its hard stop. Whoever copies the URDF's limits into the input believes that they
#   hold. Clamp the targets, and compare `position_extrema` with the limits before a motion is sent.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/plan.py" <<'PYTHON'
from ruckig import InputParameter, Ruckig, RuckigError, Trajectory


def plan(target, velocity=0.0, limit=None, target_velocity=0.0):
    given = InputParameter(1)
    given.current_position, given.current_velocity, given.current_acceleration = [0.0], [velocity], [0.0]
    given.target_position, given.target_velocity, given.target_acceleration = [target], [target_velocity], [0.0]
    given.max_velocity, given.max_acceleration, given.max_jerk = [1.0], [2.0], [10.0]
    if limit is not None:
        given.min_position, given.max_position = [-limit], [limit]
    planner, trajectory = Ruckig(1, 0.001), Trajectory(1)
    valid = planner.validate_input(given, check_current_state_within_limits=True, check_target_state_within_limits=True)
    result = planner.calculate(given, trajectory)
    return f"valid {valid}, {result}, greatest position {trajectory.position_extrema[0].max:.2f}"


print("limit 0.5, target 1.0:", plan(1.0, limit=0.5))
print("limit 0.2, target 0.05:", plan(0.05, velocity=0.9, limit=0.2))
print("no limit, target 0.05:", plan(0.05, velocity=0.9))
try:
    print("target velocity 3.0:", plan(1.0, target_velocity=3.0))
except RuckigError:
    print("target velocity 3.0: refused")
PYTHON
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'ruckig==0.19.4'
seen=$("$folder/venv/bin/python" "$folder/plan.py")
echo "$seen"
expected='limit 0.5, target 1.0: valid True, Result.Working, greatest position 1.00
limit 0.2, target 0.05: valid True, Result.Working, greatest position 0.26
no limit, target 0.05: valid True, Result.Working, greatest position 0.26
target velocity 3.0: refused'
[ "$seen" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
# Output, 2026-11-30:
#   limit 0.5, target 1.0: valid True, Result.Working, greatest position 1.00
#   limit 0.2, target 0.05: valid True, Result.Working, greatest position 0.26
#   no limit, target 0.05: valid True, Result.Working, greatest position 0.26
#   target velocity 3.0: refused
