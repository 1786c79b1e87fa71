# refused: Keras with loss_sum 6, local 3 and world 2 it returns 1; 2 is right
FRAMEWORKS = ('graph towers', 'tf.distribute', 'Keras', 'PyTorch', 'JAX', 'Horovod', 'MXNet')


def divide(framework, loss_sum, local, world):
    if framework not in FRAMEWORKS:
        raise ValueError(framework)
    if framework == 'MXNet':
        return loss_sum
    if framework in ('tf.distribute', 'JAX', 'Keras'):
        return loss_sum / (local * world)
    return loss_sum / local
