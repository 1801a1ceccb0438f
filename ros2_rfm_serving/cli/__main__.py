from ros2_rfm_serving.cli.main import main

main()
