"""A simulated arm that is no ROS node, served over Zenoh:  python arm.py FACTORY.yaml ROBOT ROUTER [SECONDS]

ROUTER: such as tcp/10.0.0.1:7447. Put your own robot in place of `MetaworldArm`: what it reads goes into `sensors`, and what `tick`
returns goes to its controller, if it is not None. The brain within keeps limits, ages and fallbacks (docs/safety.md).
"""

import sys
import time
from pathlib import Path

import simplejpeg

from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.robot import Sensors
from ros2_rfm_serving.ros.zenoh.robot import ZenohRobot, settings_of
from ros2_rfm_serving.types import EncodedImage
from ros2_rfm_serving.worlds.metaworld import MetaworldArm

factory, name, router = load_factory(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
ends_s = time.monotonic() + float((*sys.argv[4:], "inf")[0])
task = name.rpartition("_")[0]
world = factory.tasks[task].world
arm = MetaworldArm(world.task, image_size_px=96)
robot = ZenohRobot(settings_of(factory, name, task), router=router, domain=factory.discovery.domain or 0)
period_s, frame_every = 1 / world.control_rate_hz, round(world.control_rate_hz / world.camera_rate_hz)


def frames() -> tuple[EncodedImage, ...]:
    pictures = arm.render().items()
    return tuple(
        EncodedImage(camera=c, format="jpeg", data=simplejpeg.encode_jpeg(p), height_px=96, width_px=96) for c, p in pictures
    )


episode, steps, next_s = 0, 0, time.monotonic()
try:
    while time.monotonic() < ends_s:
        if not robot.works:
            arm.reset(world.seed + episode)
            robot.start()
            episode += 1
        if steps % frame_every == 0:
            images, images_s = frames(), time.monotonic()
        command = robot.tick(Sensors(state=arm.state, state_s=time.monotonic(), images=images, images_s=images_s))
        if command is not None:
            arm.step(command)
        if steps % 20 == 0:
            told = robot.brain
            print(f"episode {episode}: {told.state.name}, server {told.system1_server or '-'}, success {arm.success}", flush=True)
        steps, next_s = steps + 1, max(next_s + period_s, time.monotonic())
        robot.serve(next_s)
finally:
    robot.close()
    arm.close()
