"""Runs a command with four stand-in GPUs: `python -m tests.standin_gpu python multi_gpu_train.py --num_gpus=4`."""
import os
import sys

from tests import standin_gpu

if len(sys.argv) < 2:
    sys.exit(__doc__)
try:
    os.execvpe(sys.argv[1], sys.argv[1:], {**os.environ, **standin_gpu.environment()})
except standin_gpu.Unavailable as error:
    sys.exit(f'error: {error}')
except OSError as error:
    sys.exit(f'error: {sys.argv[1]}: {error.strerror}')
