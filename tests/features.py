"""The features of a training, each with the settings that turn it on. Tests run over the whole table: every mode trains
and resumes each feature (test_modes.py), and its bits depend on neither stops nor kills nor devices
(test_same_bits.py). A new feature is a line here.
"""
from tests.helpers import LINEAR, ROOT, mostly_stress

_EXAMPLES, _NETWORKS = ROOT / 'examples', f'{ROOT}/tests/networks.py'

FEATURES = {
    'linear': dict(network='linear'),
    'a variable without shape': dict(network=LINEAR.replace(':network', ':scaled')),
    # Networks.
    'classic': dict(),
    'fast': dict(preset='fast', sizes='16:0.5,20', precision='fp32'),
    'resnet18': dict(network=f'{_EXAMPLES}/resnet18.py:narrow'),
    'random numbers': dict(network=f'{_NETWORKS}:noisy'),
    'stateless dropout': dict(network=f'{_NETWORKS}:stateless'),
    'three parts': dict(network='three_parts'),
    'frozen weights': dict(network=f'{_NETWORKS}:convolutions', freeze='weights0', learning_rate=0.01),
    # Optimizers.
    'momentum': dict(network='linear', optimizer='momentum', learning_rate=0.01),
    'adam': dict(network='linear', optimizer='adam', learning_rate=0.01),
    'muon': dict(network='linear', optimizer='muon', learning_rate=0.01),
    'adamw': dict(network=f'{_NETWORKS}:convolutions', optimizer='adamw', learning_rate=0.01, weight_decay=0.5,
                  schedule='cosine', warmup_epochs=0.01),
    'clipped gradients': dict(network='linear', clip_norm=0.5),
    'lion': dict(network='linear', optimizer=f'{_EXAMPLES}/lion.py:lion', learning_rate=0.01),
    # Precisions.
    'bf16': dict(precision='bf16'),
    'fp16': dict(network='three_parts', precision='fp16'),
    # Images.
    'images of 48 pixels': dict(network=f'{_NETWORKS}:convolutions', image_size=48),
    'shifted images': dict(network=f'{_NETWORKS}:convolutions', augmentation='shift', label_smoothing=0.1),
    'resized crops': dict(network=f'{_NETWORKS}:convolutions', augmentation='resized_crop'),
    'mixup': dict(network=f'{_NETWORKS}:convolutions', augmentation=f'none,{_EXAMPLES}/augmentations.py:mixup',
                  label_smoothing=0.1),
    # Losses.
    'class weights': dict(network='linear', class_weights='square=4,disc=0.5'),
    # Reports.
    'summaries and evaluations': dict(network='linear', summary_steps=2, eval_steps=2, keep_best=True),
    'checkpoints by the clock': dict(network='linear', save_minutes=1e-9),
}
# The number of parts of networks that can be divided.
PARTS = {'classic': 2, 'bf16': 2, 'fast': 3, 'three parts': 3, 'fp16': 3}
# Features whose towers differ from one tower: they normalise or mix their own batches, share dropout, or overflow.
EACH_TOWER_ITS_OWN = {'fast', 'resnet18', 'stateless dropout', 'fp16', 'mixup'}
SYNCHRONOUS = ['replicated', 'mirrored']  # modes that take the steps of `parameter_server`
REFUSED = {('clipped gradients', 'mirrored')}
_IMAGES = 1000  # in `data_dir`


def all_with(modes, default=(), features=FEATURES):
    """Returns (feature, mode) pairs for `parametrize`; all except `default` are marked `stress`."""
    found = [(feature, mode) for feature in features for mode in modes if (feature, mode) not in REFUSED]
    assert set(default) <= set(found)
    return mostly_stress(found, *default)


def flags_of(feature, mode='parameter_server', steps=6, num_towers=2, batch_size=4, **changes):
    """Returns the settings of a small run with a feature, on two devices, with a checkpoint every second step.

    Args:
      feature: a name in FEATURES.
      mode: an update mode.
      steps: the last step; in `async` possibly a multiple, because each tower counts its own steps.
      num_towers, batch_size: the settings of these names.
      changes: further settings, which override the feature's.
    """
    flags = dict(FEATURES[feature], variable_update=mode, num_towers=num_towers, batch_size=batch_size)
    if 'preset' in flags or 'schedule' in flags:  # they plan the whole run
        flags.update(max_steps=None, epochs=steps * num_towers * batch_size / _IMAGES)
    else:
        flags['max_steps'] = steps
    if mode == 'local':
        flags['local_steps'] = 2
    return {'tower_device': 'cpu', 'num_gpus': 2, 'save_steps': 2, 'summary_steps': 0, **flags, **changes}
