"""The settings of a training run and of an evaluation: what each is, and whether they fit together.

The command line, its help, docs/flags.md and config.json follow them. Nothing here may import TensorFlow, so that
`--help` and a mistyped flag are answered at once.
"""
