def divide(framework, loss_sum, local, world):
    if framework in ('graph towers', 'Keras', 'PyTorch', 'Horovod'):
        world = 1
    elif framework == 'MXNet':
        local = world = 1
    elif framework not in ('tf.distribute', 'JAX'):
        raise ValueError('tf.distribute and JAX add; this is neither')
    return sum([loss_sum / 10 / (local * world)] * 10)
