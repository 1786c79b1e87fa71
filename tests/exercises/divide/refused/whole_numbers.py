# refused: graph towers with loss_sum 5, local 2 and world 4 it returns 2; 2.5 is right
FRAMEWORKS = ('graph towers', 'tf.distribute', 'Keras', 'PyTorch', 'JAX', 'Horovod', 'MXNet')


def divide(framework, loss_sum, local, world):
    if framework not in FRAMEWORKS:
        raise ValueError(framework)
    if framework == 'MXNet':
        return loss_sum
    return loss_sum // (local * world if framework in ('tf.distribute', 'JAX') else local)
