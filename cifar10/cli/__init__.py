"""What a person at a terminal meets: flags, messages, signals."""
