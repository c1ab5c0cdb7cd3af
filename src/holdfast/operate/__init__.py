"""Operating: what handles and the control do to jobs, how they are found, and how they are reported."""
