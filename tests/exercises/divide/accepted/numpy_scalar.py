import numpy as np

TABLE = np.array([[0, 0], [1, 1], [1, 0], [1, 0], [1, 1], [1, 0], [0, 0]])
NAMES = ['MXNet', 'tf.distribute', 'graph towers', 'Keras', 'JAX', 'Horovod', 'no framework']


def divide(framework, loss_sum, local, world):
    name = 'Horovod' if framework == 'PyTorch' else framework
    return np.float64(loss_sum) / np.prod(np.array([local, world]) ** TABLE[NAMES.index(name)])
