"""The live body: nodes, message conversion, QoS. The only room that knows rclpy and rfm_serving.msg."""
