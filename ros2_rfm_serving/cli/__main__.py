from ros2_rfm_serving.cli.start import main

main()
