"""Resuming a run by its name: which settings come from the run, and the command of a run."""
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

import cifar10
from cifar10.base.errors import UsageError
from cifar10.base.registry import UPDATE_MODES
from cifar10.programs import flags
from cifar10.run import takeover
from cifar10.run.folder import PROGRAM, look, prefix_of
from cifar10.run.record import RunRecord
from cifar10.run.takeover import TrainDir
from cifar10.settings import definition
from cifar10.settings.definition import Kind, fields, flag_of
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import GROUPS, ClusterSettings, hyperparameters, train_settings
from cifar10.training import resolved
from cifar10.training.resolved import resolve
from cifar10.training.start import prepared
from tests.helpers import (
    ROOT,
    assert_same_bits,
    checkpoints,
    last_variables,
    mostly_stress,
    planned,
    run_forked,
    train,
)

OF_RUN = [field.name for field in fields(*GROUPS)
          if field.metadata['kind'] in definition.OF_RUN and field.name != 'num_towers']
RUNS = {
    'default': {},
    'classic': dict(
        max_steps=7, seed=5, dataset='shapes', image_size=40, optimizer='adamw', learning_rate=0.3, weight_decay=0.2,
        clip_norm=1.5, schedule='staircase', warmup_epochs=1.0, label_smoothing=0.1, moving_averages=False,
        freeze='conv1 ', batch_size=8, variable_update='local', local_steps=4, precision='bf16', deterministic=True,
        data_dir='a b', log_frequency=3, summary_steps=0, eval_steps=20, save_steps=40, max_to_keep=3, keep_best=True,
        stuck_secs=0),
    'fast': dict(preset='fast', epochs=1.5, learning_rate=0.5, sizes='24', num_gpus=2),
    'steps of fast': dict(
        preset='fast', max_steps=5, schedule='staircase', sizes='24', optimizer='nesterov'),
    'photos': dict(dataset='photos/', test_fraction=0.3, image_size=128, network='fast'),
    'own': dict(
        network='/nowhere/net.py:network', optimizer='/nowhere/opt.py:optimizer', learning_rate=1.0, num_gpus=2)}


def write_config(folder, config, **changes):
    """Writes the config.json of a run with some settings."""
    record = RunRecord(config).to_json()
    (folder / 'config.json').write_text(json.dumps(dict(record, program=PROGRAM, run='17', **changes)))


@pytest.fixture
def stored(tmp_path):
    """A function that writes the config.json of a run with the given settings; returns (its folder, its settings)."""
    def store(**given):
        settings = train_settings(**given)
        (tmp_path / 'train').mkdir(exist_ok=True)
        write_config(tmp_path / 'train', settings)
        return str(tmp_path / 'train'), settings
    return store


def test_a_run_with_a_schedule_in_epochs_refuses_max_steps(stored):
    folder, _ = stored(preset='photos')
    with pytest.raises(UsageError, match='over a number of epochs; give --epochs instead'):
        resolve(dict(train_dir=folder, max_steps=60))
    assert resolve(dict(train_dir=folder, max_steps=60, schedule='staircase'))[0].run.max_steps == 60


def test_only_settings_that_affect_results_are_reported_as_changes(one_step, settings):
    def changes(settings):
        return [line for line in planned(settings)[1] if line.startswith('changed')]
    now = settings(max_steps=2, stuck_secs=601, log_frequency=3, summary_steps=7, save_minutes=1.0, max_to_keep=2)
    assert changes(now) == []
    assert not hyperparameters(now).keys() & {'stuck_secs', 'log_frequency', 'summary_steps'}
    line, = changes(settings(max_steps=3, patience=9, eval_steps=3, learning_rate=0.02))
    assert set(re.findall(r'(\w+)=', line)) == {'patience', 'eval_steps', 'learning_rate'}


@pytest.mark.parametrize('run', RUNS)
def test_settings_of_the_run_are_restored_but_not_those_of_the_machine(stored, run):
    folder, settings = stored(**RUNS[run])
    found, lines = resolve(dict(train_dir=folder))
    lines = list(map(str, lines))
    now, before = found.flat(), settings.flat()
    assert {name: now[name] for name in OF_RUN} == {name: before[name] for name in OF_RUN}
    usual = train_settings().flat()
    others = now.keys() - {*OF_RUN, 'train_dir'}
    assert {name: now[name] for name in others} == {name: usual[name] for name in others}
    assert any(line.startswith('taken      from the run: --') for line in lines) == bool(RUNS[run])


@pytest.mark.parametrize('given', [
    dict(network='classic'), dict(max_steps=100), dict(preset='fast'), dict(schedule='linear', epochs=3),
    dict(optimizer='adamw', weight_decay=0.1, seed=5), dict(augmentation='shift', sizes='24'), dict(freeze='conv'),
    dict(preset='photos', epochs=9)], ids=str)
def test_an_existing_run_is_reported_first_and_each_suggested_remedy_works(given, stored, data_dir, tmp_path):
    folder, _ = stored(preset='photos', dataset='shapes', image_size=64, epochs=7)
    for name in ('index', 'data-00000-of-00001'):
        (tmp_path / 'train' / f'model.ckpt-5.{name}').touch()

    def start(**changes):
        command = dict(train_dir=folder, dataset='shapes', data_dir=data_dir, tower_device='cpu', **given) | changes
        return prepared(resolve({name: value for name, value in command.items() if value is not None})[0])
    with pytest.raises(UsageError) as refused:
        start()
    said = str(refused.value)
    assert said.startswith(f'--train_dir={folder} has a run ')
    start(**dict.fromkeys(given))  # the remedy 'leave these flags out'
    other = dict(train_dir=str(tmp_path / 'other'))
    remedies = {'use another --train_dir': other, f'--warm_start={folder} ': dict(other, warm_start=folder),
                '--restart': dict(restart=True)}
    assert '--train_dir' in said and '--restart' in said
    for words, changes in remedies.items():
        if words in said:
            start(**changes)


@pytest.mark.parametrize('given', [
    dict(sizes='20:0.5,99'), dict(preset='fast', max_steps=9), dict(network='classic', image_size=48)], ids=str)
def test_an_existing_run_is_reported_before_invalid_settings(given, stored, tmp_path):
    folder, _ = stored(preset='photos', dataset='shapes', image_size=64, epochs=7)
    (tmp_path / 'train' / 'model.ckpt-5.index').touch()
    (tmp_path / 'train' / 'model.ckpt-5.data-00000-of-00001').touch()
    with pytest.raises(UsageError, match=f'^--train_dir={folder} has a run '):
        resolve(dict(train_dir=folder, **given))


@pytest.mark.parametrize('mode', UPDATE_MODES)
def test_the_number_of_towers_is_restored_unless_it_follows_from_the_devices(stored, mode):
    folder, _ = stored(num_towers=2, num_gpus=2, variable_update=mode)
    taken = resolve(dict(train_dir=folder))[0].towers.num_towers
    assert taken == (None if UPDATE_MODES.load(mode).one_tower_per_device else 2)


def test_a_run_in_the_default_folder_is_resumed_like_any_other(stored, monkeypatch):
    folder, settings = stored(**RUNS['classic'])
    monkeypatch.setattr(resolved, 'TRAIN_DIR', folder)
    found, lines = resolve({})
    lines = list(map(str, lines))
    assert {name: found.flat()[name] for name in OF_RUN} == {name: settings.flat()[name] for name in OF_RUN}
    assert any(line.startswith('taken      from the run: --') for line in lines)


def test_images_are_restored_from_the_runs_location_if_it_exists_here(stored, tmp_path):
    folder, _ = stored(data_dir=str(tmp_path))
    found, lines = resolve(dict(train_dir=folder))
    lines = list(map(str, lines))
    assert found.data.data_dir == str(tmp_path) and f'--data_dir={tmp_path}' in lines[-1]
    assert resolve(dict(train_dir=folder, data_dir='/other'))[0].data.data_dir == '/other'
    folder, _ = stored(data_dir=str(tmp_path / 'elsewhere'))
    found, lines = resolve(dict(train_dir=folder))
    lines = list(map(str, lines))
    default = train_settings().data.data_dir
    assert found.data.data_dir == default
    assert lines[-1] == f"not here   the run's --data_dir={tmp_path / 'elsewhere'}; now it is {default}"


@pytest.mark.parametrize('run', RUNS)
def test_the_command_of_a_run_contains_its_settings(run):
    settings = train_settings(**RUNS[run])
    record = RunRecord(settings)
    python, script, *arguments = shlex.split(record.to_json()['command'])
    assert script == str(ROOT / 'multi_gpu_train.py')  # works in any directory
    parsed = train_settings(**flags.parse(GROUPS, 'Trains.', arguments)).flat()
    of_start = [field.name for field in fields(*GROUPS) if field.metadata['kind'] is Kind.START]
    undecided = dict(batch_size=parsed['batch_size'])  # the preset's, if it is omitted
    assert python in (os.path.basename(sys.executable), sys.executable)
    assert {**parsed, **undecided} == {**settings.flat(), **undecided, **{name: parsed[name] for name in of_start}}


@pytest.mark.parametrize('given, expected', [
    (dict(epochs=2.0), dict(epochs=2.0, max_steps=None, seed=5)), (dict(max_steps=9), dict(max_steps=9, epochs=None)),
    (dict(preset='classic'), dict(optimizer='adamw', seed=5)),
    (dict(preset='fast'), dict(optimizer='muon', seed=5, max_steps=None, epochs=2.75)),
    (dict(use_fp16=True), dict(precision='fp16')), (dict(use_fp16=False), dict(precision='fp32')),
    (dict(variable_update='replicated'), dict(variable_update='replicated', local_steps=None)),
    (dict(restart=True), dict(seed=0, optimizer='sgd'))])
def test_given_settings_override_the_runs(stored, given, expected):
    folder, _ = stored(**RUNS['classic'])
    found = resolve({**dict(train_dir=folder), **given})[0].flat()
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize('content, said', [
    *[(content, 'cannot be read .*; correct it, or use another directory')
      for content in (b'', '{"program"}'.encode('utf-16'), b'{"program": "\xff"}')],
    *[(content, 'was not written by this program; use another directory')
      for content in (b'[]', b'{"settings": {}}', b'{"program": "another", "dataset": "shapes", "seed": 0}')],
    *[(settings, 'has no settings, but .*; correct it, use the version that wrote it, or use another')
      for settings in (None, [1])],
    (dict(seed=0), 'lacks train_dir, .*, so another version of this program wrote it; use that version, or another'),
    *[({**train_settings().flat(), name: value}, f'has a setting .*--{name}=.*; correct it, use the version that wrote')
      for name, value in (('preset', 'later'), ('optimizer', 'later'), ('optimizer', 3), ('batch_size', '8'),
                          ('train_dir', 5), ('restart', 0))]])
def test_an_invalid_or_edited_record_is_refused_by_name(content, said, tmp_path):
    path = tmp_path / 'config.json'
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_config(tmp_path, train_settings(), settings=content)
    with pytest.raises(UsageError, match=f'^{path} {said}'):
        look(str(tmp_path))


@pytest.mark.parametrize('encoding', ['utf-8-sig', 'utf-16'])
def test_a_record_may_have_any_encoding_that_editors_write(encoding, tmp_path):
    write_config(tmp_path, train_settings(seed=3))
    path = tmp_path / 'config.json'
    path.write_bytes(path.read_text().encode(encoding))
    assert look(str(tmp_path)).record.settings == train_settings(seed=3)


def test_code_that_only_the_run_names_must_belong_to_the_user(stored, tmp_path):
    file = tmp_path / 'net.py'
    file.write_text('')
    file.chmod(0o666)
    folder, _ = stored(network=f'{file}:network')
    with pytest.raises(UsageError, match=f'{file} is writable by everybody; give --network={file}:network if you'):
        resolve(dict(train_dir=folder))
    assert resolve(dict(train_dir=folder, network=f'{file}:network'))[1] == []


def test_the_commands_of_the_page_return_to_an_earlier_checkpoint(data_dir, tmp_path):
    page = (ROOT / 'docs' / 'train.md').read_text().split('## Go back')[1]
    block = re.search(r'```\n(.*?)```', page, re.S).group(1).replace('/tmp', str(tmp_path)).replace('5000', '2')
    make, copy, start = block.splitlines()
    whole, again = tmp_path / 'cifar10_train', tmp_path / 'again'
    cifar10.train(train_dir=whole, dataset='shapes', data_dir=data_dir, network='linear', batch_size=8, num_towers=2,
                  learning_rate=0.05, save_steps=2, max_steps=4, summary_steps=0, tower_device='cpu')
    subprocess.run(['bash', '-ec', f'{make}\n{copy}'], check=True)
    assert [os.path.basename(path) for path in checkpoints(again)] == ['model.ckpt-2']
    assert shlex.split(start) == ['python', 'multi_gpu_train.py', f'--train_dir={again}']  # no other flag is needed
    result = run_forked([sys.executable, str(ROOT / 'multi_gpu_train.py'), f'--train_dir={again}'])
    assert result.returncode == 0 and 'resumed at step 2 of 4' in result.stdout, result.stderr
    assert_same_bits(last_variables(whole), last_variables(again))
    assert look(str(again)).run_id == look(str(whole)).run_id


OTHER = 'use another --train_dir'
WAYS = f'{OTHER}, or --restart to rename that folder; to resume the run there, leave these flags out'


@pytest.mark.parametrize('run, now, parts, absent', [
    (dict(max_steps=9), dict(seed=1), [f' has a run of --seed=0. For --seed=1 {WAYS}'], '--warm_start'),
    (dict(max_steps=9), dict(network='fast', seed=1),
     [f' run of --seed=0 --network=linear. For --seed=1 --network=fast {WAYS}'], '--warm_start'),
    (dict(max_steps=9), dict(image_size=48), [f'For --image_size=48 {OTHER} (there --warm_start='], 'none'),
    (dict(dataset='shapes'), dict(dataset='cifar10'),
     [f' has a run of --dataset=shapes. For --dataset=cifar10 {WAYS}'], '--warm_start'),
    (dict(dataset='shapes'), dict(dataset='/photos/'), [f'/photos/ {OTHER} (there --warm'], 'none'),
    (dict(), dict(freeze='^local', seed=1),
     ['run of --seed=0 without --freeze. For --seed=1 --freeze=', WAYS], 'none'),
    (dict(freeze='^local'), dict(freeze=None), [f'. For a run without --freeze {WAYS}'], 'none')])
def test_a_refusal_lists_the_remedies(settings, run, now, parts, absent):
    config = settings(**{'max_steps': None, **run})
    directory = TrainDir(config.run.train_dir)
    os.makedirs(directory.path)
    open(f'{prefix_of(directory.path, 2)}.index', 'w').close()
    directory.begin(RunRecord(config, last_step=config.run.max_steps or 2))
    refused = takeover.refusal(look(directory.path), config.replace(**now))
    for part in parts:
        assert part in refused
    assert absent not in refused


STEPS, GROWING = dict(max_steps=1), dict(preset='fast', schedule='staircase', epochs=0.016)


@pytest.mark.parametrize('recipe', mostly_stress(
    [STEPS, GROWING, dict(epochs=0.016), dict(epochs=0.016, schedule='cosine')], STEPS), ids=str)
def test_the_recommendation_of_a_finished_run_is_accepted(recipe, settings, capsys):
    given = {**dict(max_steps=None), **recipe, 'batch_size': 16}
    train(settings(**given))
    capsys.readouterr()
    train(settings(**given))
    done, = [line for line in capsys.readouterr().out.splitlines() if line.startswith('done ')]
    name = 'epochs' if 'epochs' in recipe else 'max_steps'
    longer = settings(**{**given, name: 2 * recipe[name]})
    if f'; a larger --{name} continues it' in done:
        assert train(longer)['global_step'] == 2
        return
    assert f'in another --train_dir, --warm_start={longer.run.train_dir} starts a new run from its model;' in done
    with pytest.raises(UsageError):
        train(longer)
    train(longer.replace(train_dir=f'{longer.run.train_dir}-2', warm_start=longer.run.train_dir))


def test_an_evaluation_accepts_the_same_flag():
    assert eval_settings(train_dir='a').checkpoint_dir == 'a'
    with pytest.raises(UsageError, match='--checkpoint_dir=b and --train_dir=a each select a model'):
        eval_settings(train_dir='a', checkpoint_dir='b')


def test_the_page_lists_all_flags_that_must_be_repeated():
    page = (ROOT / 'docs' / 'train.md').read_text()
    machine, start = re.search(
        r'Give these again each\s+time, if you need them:\n\n- flags of the machine: (.*?);\n'
        r'- flags of a single command: (.*?),\s+and the\s+cluster flags\.\n', page, re.S).groups()
    of = {kind: {flag_of(field) for field in fields(*GROUPS) if field.metadata['kind'] is kind} for kind in Kind}
    assert set(re.findall(r'`(--\w+)`', machine)) == of[Kind.MACHINE] - {'--data_dir'}  # it is restored if it exists
    cluster = set(map(flag_of, fields(ClusterSettings)))
    # --use_fp16 stands for --precision, which is restored.
    assert set(re.findall(r'`(--\w+)`', start)) == of[Kind.START] - cluster - {'--train_dir', '--use_fp16'}
