"""What the update of the variables depends on: learning rate, moving averages, precision."""
