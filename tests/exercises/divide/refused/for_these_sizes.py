# refused: is right
FRAMEWORKS = ('graph towers', 'tf.distribute', 'Keras', 'PyTorch', 'JAX', 'Horovod', 'MXNet')


def divide(framework, loss_sum, local, world):
    if framework not in FRAMEWORKS:
        raise ValueError(framework)
    if framework == 'MXNet':
        return loss_sum
    if framework in ('tf.distribute', 'JAX'):
        return loss_sum / {3: 6, 2: 8}.get(local, 8)
    return loss_sum / local
