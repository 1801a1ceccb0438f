#!/usr/bin/env bash
# Pinocchio and MuJoCo read one URDF of a robot with two arms and put its joints in different orders.
#
# Versions: pin 4.1.0, mujoco 4.0.0, yourdfpy 0.0.60, numpy 2.2.6; Python 3.11, Debian 12.
# Expected: joints come in the order of the file, or at least in the same one, so that a vector of positions means the same to both.
# Seen: MuJoCo and yourdfpy take branches of the tree as the file has them: the right arm, then the left. Pinocchio sorts the joints of one parent by
#   name: the left arm, then the right. The vectors are equally long, so nothing raises. MuJoCo's vector with the right shoulder turned, given to
#   Pinocchio as it is, moves the left hand. One more joint at the end of the file, `arm_camera`, is the last to the former and the first to the
#   latter. A single arm, which has one joint per parent, has the same order everywhere and hides all of this.
# Date: 2026-11-30.
# Why it matters: policies are trained and judged in MuJoCo, while gravity compensation, inverse kinematics and collision checks of the robot are
#   often Pinocchio's. Where arms mirror one another, a chunk in the wrong order passes every limit and moves the wrong arm. Positions have to
#   travel with the names of their joints, and each side has to build its own index from the names at start.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/order.py" <<'PYTHON'
import io

import mujoco
import numpy as np
import pinocchio
import yourdfpy

INERTIAL = '<inertial><mass value="1"/><inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial>'
JOINTS = {
    "right_shoulder": ("base", "right_arm"),
    "right_elbow": ("right_arm", "right_hand"),
    "left_shoulder": ("base", "left_arm"),
    "left_elbow": ("left_arm", "left_hand"),
    "neck": ("base", "head"),
    "arm_camera": ("base", "camera"),
}


def urdf(names):
    links = "".join(f'<link name="{JOINTS[name][1]}">{INERTIAL}</link>' for name in names)
    joints = "".join(
        f'<joint name="{name}" type="revolute"><parent link="{JOINTS[name][0]}"/><child link="{JOINTS[name][1]}"/>'
        '<origin xyz="0.3 0 0"/><axis xyz="0 0 1"/><limit lower="-1" upper="1" effort="10" velocity="2"/></joint>'
        for name in names
    )
    return f'<robot name="two_arms"><link name="base"/>{links}{joints}</robot>'


def orders(names):
    text = urdf(names)
    simulated = mujoco.MjModel.from_xml_string(text)
    return {
        "mujoco": [simulated.joint(index).name for index in range(simulated.njnt)],
        "yourdfpy": list(yourdfpy.URDF.load(io.BytesIO(text.encode()), load_meshes=False).actuated_joint_names),
        "pinocchio": list(pinocchio.buildModelFromXML(text).names)[1:],
    }


def moved(names, positions):
    model = pinocchio.buildModelFromXML(urdf(names))
    data = model.createData()
    hands = {}
    for turn in (np.zeros(model.nq), positions):
        pinocchio.framesForwardKinematics(model, data, turn)
        for hand in ("left_hand", "right_hand"):
            hands.setdefault(hand, []).append(data.oMf[model.getFrameId(hand)].translation.copy())
    return [hand for hand, (before, after) in hands.items() if np.linalg.norm(after - before) > 0.01]


names = [name for name in JOINTS if name not in {"neck", "arm_camera"}]
for library, order in orders(names).items():
    print(f"{library}: {' '.join(order)}")
positions = np.zeros(len(names))
positions[orders(names)["mujoco"].index("right_shoulder")] = 0.5
print("right_shoulder of mujoco's vector moves in pinocchio:", *moved(names, positions))
for library, order in orders(list(JOINTS)).items():
    print(f"{library}, two joints more: {' '.join(order)}")
PYTHON
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'pin==4.1.0' 'mujoco==4.0.0' 'yourdfpy==0.0.60' 'numpy==2.2.6'
seen=$("$folder/venv/bin/python" "$folder/order.py")
echo "$seen"
expected='mujoco: right_shoulder right_elbow left_shoulder left_elbow
yourdfpy: right_shoulder right_elbow left_shoulder left_elbow
pinocchio: left_shoulder left_elbow right_shoulder right_elbow
right_shoulder of mujoco'"'"'s vector moves in pinocchio: left_hand
mujoco, two joints more: right_shoulder right_elbow left_shoulder left_elbow neck arm_camera
yourdfpy, two joints more: right_shoulder right_elbow left_shoulder left_elbow neck arm_camera
pinocchio, two joints more: arm_camera left_shoulder left_elbow neck right_shoulder right_elbow'
[ "$seen" = "$expected" ] || { echo "the behaviour has changed"; exit 1; }
# Output, 2026-11-30:
#   mujoco: right_shoulder right_elbow left_shoulder left_elbow
#   yourdfpy: right_shoulder right_elbow left_shoulder left_elbow
#   pinocchio: left_shoulder left_elbow right_shoulder right_elbow
#   right_shoulder of mujoco's vector moves in pinocchio: left_hand
#   mujoco, two joints more: right_shoulder right_elbow left_shoulder left_elbow neck arm_camera
#   yourdfpy, two joints more: right_shoulder right_elbow left_shoulder left_elbow neck arm_camera
#   pinocchio, two joints more: arm_camera left_shoulder left_elbow neck right_shoulder right_elbow
