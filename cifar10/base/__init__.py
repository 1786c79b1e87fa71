"""What every room may use: errors, output, registered names, files and folders, signals, a user's own code."""
