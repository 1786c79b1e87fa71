"""Defines the settings of training runs and evaluations, and checks them together.

The command line, its help, docs/flags.md and config.json follow them. Nothing here may import TensorFlow, so that
`--help` and a mistyped flag get an instant answer.
"""
