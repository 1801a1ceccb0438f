"""What a placement will give: latency curves, convoys, goodput."""
