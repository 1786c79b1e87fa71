"""Replay: the steps of a run are taken again, in memory, to show what happened in one of them.

`rerun` takes them, `verify` compares them with what the run recorded, `probe` computes what a step does not report,
`report` and `images` show it.
"""
