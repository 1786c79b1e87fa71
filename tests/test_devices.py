"""The devices of towers, and the devices that a process claims before it builds a graph. test_gpu.py needs a GPU."""

import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError
from cifar10.parallel import devices, gpus
from cifar10.parallel.session_config import absent, refuse_absent, session_config
from cifar10.settings.training import train_settings


def test_gpus_are_divided_among_towers():
    with pytest.raises(UsageError, match='--num_gpus=3 cannot be divided into towers of --gpus_per_tower=2'):
        train_settings(num_gpus=3, gpus_per_tower=2)
    assert devices.choose(4, 'cpu', 2).groups == (('/cpu:0', '/cpu:1'), ('/cpu:2', '/cpu:3'))


def test_too_many_devices_are_refused_and_long_lists_are_abbreviated():
    assert str(devices.choose(64, 'cpu')) == '64 CPU devices (as requested): /cpu:0 /cpu:1 /cpu:2 ... /cpu:63'
    assert str(devices.choose(8, 'cpu')).endswith(': ' + ' '.join(f'/cpu:{i}' for i in range(8)))
    with pytest.raises(UsageError, match=r'--num_gpus=400 .*\b64 CPU devices \(as requested\).*--num_gpus=64,'):
        devices.choose(400, 'cpu')


# The following tests pretend to have GPUs, so that they run on any machine.

@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """A function that simulates GPUs from the memory limits of each GPU's logical devices, and optionally a driver."""
    def set_up(*memory_limits, driver=False, nodes=0, visible=None, order=None):
        monkeypatch.setattr(gpus, 'memory_limits', lambda: list(memory_limits))
        (tmp_path / 'version').write_text('NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 2023')
        for i in range(nodes):
            (tmp_path / f'nvidia{i}').touch()
        monkeypatch.setattr(gpus, '_NVIDIA_DRIVER', str(tmp_path / ('version' if driver else 'none')))
        monkeypatch.setattr(gpus, '_NVIDIA_DEVICES', str(tmp_path / 'nvidia[0-9]*'))
        for name, value in (('CUDA_VISIBLE_DEVICES', visible), ('CUDA_DEVICE_ORDER', order)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
    return set_up


def test_too_few_gpus_are_refused_with_the_number_available(pretend):
    pretend([], [])
    with pytest.raises(UsageError, match='--num_gpus=4, but this machine has 2 GPUs; use --num_gpus=2'):
        devices.choose(4, 'auto')
    with pytest.raises(UsageError, match='--towers=3, but .* use --towers=2, or --tower_device=cpu'):
        devices.choose(3, 'auto', count_flag='--towers')
    with pytest.raises(UsageError, match='--num_gpus=3, .* use --num_gpus=2 --gpus_per_tower=2, or'):
        devices.choose(3, 'auto', per_tower=3)
    with pytest.raises(UsageError, match='--num_gpus=4, .* use --num_gpus=2, or'):
        devices.choose(4, 'auto', per_tower=2)
    assert devices.choose(2, 'auto').tower_devices == ('/gpu:0', '/gpu:1')
    assert devices.choose(4, 'cpu').tower_devices == ('/cpu:0', '/cpu:1', '/cpu:2', '/cpu:3')


def test_parts_of_a_split_gpu_count_as_gpus(pretend):
    pretend([1024] * 4)
    assert devices.choose(4, 'auto').tower_devices == tuple(f'/gpu:{k}' for k in range(4))


def test_parts_of_one_gpu_do_not_reduce_through_nccl(pretend):
    pretend([], [])
    assert [gpus.communication(on_gpus) for on_gpus in (True, False)] == ['nccl', 'ring']
    for machine in ([[1024] * 2], [[1024] * 2, []]):
        pretend(*machine)
        assert gpus.communication(on_gpus=True) == 'ring'


@pytest.mark.parametrize('visible, with_it', [(None, ''), ('0,1', ' with CUDA_VISIBLE_DEVICES=0,1')])
def test_a_driver_without_a_usable_gpu_is_refused_with_all_remedies(visible, with_it, pretend):
    pretend(driver=True, nodes=2, visible=visible)
    with pytest.raises(UsageError) as refused:
        devices.choose(1, 'auto')
    for fact in ('NVIDIA GPU', f'driver 535.129.03, but TensorFlow cannot use it{with_it};', 'driver 525 or newer',
                 "pip install 'tensorflow[and-cuda]'", '--tower_device=cpu'):
        assert fact in str(refused.value)
    assert devices.choose(1, 'cpu').tower_devices == ('/cpu:0',)


@pytest.mark.parametrize('machine, found', [
    (dict(), 'no GPU found'), (dict(driver=True), 'this container has no GPU')])
def test_selected_but_missing_gpus_are_refused(machine, found, pretend):
    pretend(**machine, visible='2,5')
    for kind in ('auto', 'gpu'):
        with pytest.raises(UsageError) as refused:
            devices.choose(2, kind)
        assert str(refused.value) == (
            f'CUDA_VISIBLE_DEVICES=2,5, but {found}; check whether nvidia-smi lists them, or use --tower_device=cpu')
    assert devices.choose(2, 'cpu').reason == 'as requested'


def test_a_selection_of_too_few_gpus_is_refused_with_the_selection(pretend):
    for visible in ('2', '2,-1,5', '2,9', 'GPU-2ead', 'MIG-1/2/3'):
        pretend([], driver=True, nodes=8, visible=visible)
        with pytest.raises(UsageError, match=f'=2, but CUDA_VISIBLE_DEVICES={visible} leaves 1 GPU; use --num_gpus=1'):
            devices.choose(2, 'auto')


@pytest.mark.parametrize('machine, reason', [
    (dict(), 'no GPU found'),
    (dict(driver=True), 'this container has no GPU'),
    (dict(driver=True, nodes=1, visible=''), 'CUDA_VISIBLE_DEVICES= hides all GPUs'),
    (dict(driver=True, nodes=1, visible='-1,0'), 'CUDA_VISIBLE_DEVICES=-1,0 hides all GPUs'),
    (dict(visible='NoDevFiles'), 'CUDA_VISIBLE_DEVICES=NoDevFiles hides all GPUs')])
def test_the_line_about_devices_says_why_there_is_no_gpu(machine, reason, pretend):
    pretend(**machine)
    assert str(devices.choose(2, 'auto')) == f'2 CPU devices ({reason}): /cpu:0 /cpu:1'
    with pytest.raises(UsageError, match=f'--tower_device=gpu: {reason}; use --tower_device=cpu'):
        devices.choose(1, 'gpu')


@pytest.mark.parametrize('num_devices, per_tower, num_towers, expected', [
    (2, 1, 2, '2 CPU devices (as requested): /cpu:0 /cpu:1'),
    (1, 1, 1, '1 CPU device (as requested): /cpu:0'),
    (3, 1, 4, '3 CPU devices (as requested): /cpu:0 /cpu:1 /cpu:2'),
    (4, 1, 2, '2 CPU devices (as requested): /cpu:0 /cpu:1'),
    (4, 2, 4, '4 CPU devices (as requested): /cpu:0+/cpu:1 /cpu:2+/cpu:3')])
def test_any_number_of_towers_is_spread_over_the_devices(num_devices, per_tower, num_towers, expected):
    cpus = devices.choose(num_devices, 'cpu', per_tower).with_towers(num_towers)
    assert str(cpus) == expected
    groups = num_devices // per_tower
    assert cpus.tower_devices == tuple(f'/cpu:{k % groups * per_tower}' for k in range(num_towers))
    assert cpus.hosts == ('/cpu:0',) * num_towers


@pytest.mark.parametrize('count, kind, memory_limits, expected', [
    (1, 'gpu', [[], [], [], []], [(0, True)]),
    (3, 'gpu', [[], [], [], []], [(0, True), (1, True), (2, True)]),
    (4, 'cpu', [[], []], []),
    (2, 'cpu', [], []),
    (3, 'gpu', [[512] * 4, []], [(0, False)]),
    (5, 'gpu', [[512] * 4, [512] * 4, []], [(0, False), (1, False)])])
def test_only_used_gpus_are_claimed_and_their_memory_grows(count, kind, memory_limits, expected):
    local = devices.Devices(tuple((f'/{kind}:{k}',) for k in range(count)), kind == 'gpu')
    assert gpus.used(local.num_gpus, memory_limits) == expected


def test_sessions_share_the_configuration_of_the_process(pretend):
    pretend([], [])
    config = session_config(devices.choose(1, 'gpu'))
    assert config.gpu_options.allow_growth and config.device_count == {'GPU': 1}
    assert session_config(devices.choose(3, 'cpu')).device_count == {'CPU': 3, 'GPU': 0}
    pretend([512, 256], [])
    config = session_config(devices.choose(2, 'gpu')).gpu_options
    assert not config.allow_growth and config.visible_device_list == '0'
    assert [list(parts.memory_limit_mb) for parts in config.experimental.virtual_devices] == [[512, 256]]


def test_missing_devices_are_listed_by_task_type_and_number():
    local = devices.Devices((('/gpu:0',), ('/gpu:1',)), on_gpus=True)
    both = local.spread(2, 0, 'grpc://a:1')
    present = [f'/job:worker/replica:0/task:{i}/device:GPU:0' for i in (0, 1)]
    present += ['/job:worker/replica:0/task:1/device:GPU:1', '/job:worker/replica:0/task:0/device:CPU:1']
    assert absent(both, present) == ['/job:worker/task:0/gpu:1']
    assert absent(local, [f'/job:localhost/replica:0/task:0/device:GPU:{k}' for k in (0, 1)]) == []


def test_a_session_without_the_towers_devices_is_refused():
    one, three = devices.choose(1, 'cpu'), devices.choose(3, 'cpu')
    with tf.Session(config=session_config(three)) as session:
        refuse_absent(session, three)
        refuse_absent(session, one)
    with tf.Session(config=session_config(one)) as session, pytest.raises(UsageError, match='without /cpu:1 /cpu:2;'):
        refuse_absent(session, three)


def test_a_started_runtime_cannot_claim_other_gpus(monkeypatch):
    # Once the runtime has started, TensorFlow raises a RuntimeError.
    def refuse(*arguments):
        raise RuntimeError('Visible devices cannot be modified after being initialized')
    monkeypatch.setattr(tf.config, 'set_visible_devices', refuse)
    monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: ['one', 'other'])
    monkeypatch.setattr(tf.config, 'get_visible_devices', lambda kind: ['one'])
    monkeypatch.setattr(gpus, 'memory_limits', lambda: [[], []])
    gpus.claim(1)
    gpus.claim(0)
    with pytest.raises(UsageError, match='start a new process'):
        gpus.claim(2)
