"""The programs: flags, exit statuses, and what `python -m cifar10` offers beside the two scripts."""
