from toy_policy import GOAL, ToyPolicy

from ros2_rfm_serving.engines.flow.engine import FlowEngine
from ros2_rfm_serving.engines.warmup import warm_up, warmup_request

engine = FlowEngine(ToyPolicy())
warm_up(engine, 4)  # a batch of 4, its answers as the contract promises
request = warmup_request(engine.contract)
request.state[GOAL] = [0.05, -0.02, 0.0]
print(engine.infer([request])[0].chunk_robot.round(2))
