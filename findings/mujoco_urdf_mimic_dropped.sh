#!/usr/bin/env bash
# MuJoCo 3.3.0 loads a URDF with a `mimic` joint and drops the coupling without a word; 4.0.0 keeps it.
#
# Versions: mujoco 3.3.0 (which metaworld 3.1.1 pins) and mujoco 4.0.0; Python 3.11, Debian 12.
# Expected: the second finger of a parallel gripper follows the first, or the loader warns that it will not.
# Seen: 3.3.0 makes two free joints and no constraint (`neq` 0), so that one finger moves and the other stays where it is. 4.0.0 makes an
#   equality constraint of it (`neq` 1).
# Date: 2026-11-29.
# Why it matters: nearly every gripper's URDF uses `mimic`. A simulated robot then closes on an object with one finger, and a policy that is
#   judged in simulation fails for a reason that no log names.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/load.py" <<'PYTHON'
import mujoco

INERTIAL = '<inertial><mass value="0.1"/><inertia ixx="1e-4" iyy="1e-4" izz="1e-4" ixy="0" ixz="0" iyz="0"/></inertial>'
LIMIT = '<limit lower="0" upper="0.04" effort="20" velocity="0.2"/>'
URDF = f"""<robot name="gripper">
<link name="palm"/><link name="left">{INERTIAL}</link><link name="right">{INERTIAL}</link>
<joint name="finger" type="prismatic"><parent link="palm"/><child link="left"/><axis xyz="1 0 0"/>{LIMIT}</joint>
<joint name="other_finger" type="prismatic"><parent link="palm"/><child link="right"/><axis xyz="-1 0 0"/>{LIMIT}
<mimic joint="finger" multiplier="1.0"/></joint>
</robot>"""
model = mujoco.MjModel.from_xml_string(URDF)
data = mujoco.MjData(model)
for _ in range(500):
    data.qfrc_applied[0] = 0.01 - 0.1 * data.qvel[0]  # a weak push on the first finger alone, damped
    model.opt.gravity[:] = 0
    mujoco.mj_step(model, data)
follows = abs(data.qpos[1] - data.qpos[0]) < 0.2 * abs(data.qpos[0])
print(f"mujoco {mujoco.__version__}: {model.njnt} joints, {model.neq} constraints, the other finger follows: {follows}")
PYTHON
seen=""
for version in 3.3.0 4.0.0; do
  "${PYTHON:-python3}" -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q --disable-pip-version-check "mujoco==$version"
  seen+=$("$folder/$version/bin/python" "$folder/load.py")$'\n'
done
printf '%s' "$seen"
expected='mujoco 3.3.0: 2 joints, 0 constraints, the other finger follows: False
mujoco 4.0.0: 2 joints, 1 constraints, the other finger follows: True
'
[ "$seen" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
# Output, 2026-11-29:
#   mujoco 3.3.0: 2 joints, 0 constraints, the other finger follows: False
#   mujoco 4.0.0: 2 joints, 1 constraints, the other finger follows: True
