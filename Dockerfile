# Trains on NVIDIA GPUs. NOT BUILT YET: the tests use Python 3.11 and these packages, but nobody has built or run this
# image. The host needs the NVIDIA driver and the NVIDIA Container Toolkit; pip installs CUDA.
#
#   docker build -t cifar10-towers .
#   docker run --gpus all -v "$PWD/runs:/runs" cifar10-towers multi_gpu_train.py --num_gpus=4 \
#       --data_dir=/runs/data --train_dir=/runs/first
FROM python:3.11-slim-bookworm

WORKDIR /app
COPY pyproject.toml setup.cfg LICENSE multi_gpu_train.py cifar10_eval.py ./
COPY cifar10 cifar10
RUN pip install --no-cache-dir \
    'tensorflow[and-cuda]==2.21.0' tensorboard==2.21.0 'setuptools<82' \
    absl-py==2.5.1 numpy==2.4.6 pillow==13.0.0 six==1.17.0 tqdm==4.70.1 \
    .

ENTRYPOINT ["python"]
CMD ["multi_gpu_train.py", "--help"]
