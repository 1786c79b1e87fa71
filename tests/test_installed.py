"""The wheel, used from another directory, and the source archive with its own tests."""
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv

import pytest

from tests.helpers import ROOT, patient, tensorboard

pytestmark = pytest.mark.stress


def run(*command, cwd, **environment):
    """Runs a command that must succeed; returns its output."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env={**os.environ, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patient(300))
    assert done.returncode == 0, done.stdout
    return done.stdout


def tracked():
    """Returns the names of the files that git tracks."""
    return run('git', 'ls-files', '-z', cwd=ROOT).split('\0')[:-1]


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    """A folder with the wheel and the source archive, built from the files that git tracks."""
    if not (ROOT / '.git').exists():
        pytest.skip('this is no checkout, so git does not list the files')
    folder = tmp_path_factory.mktemp('built')
    for name in tracked():
        (folder / 'source' / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / 'source' / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, '-c', 'from setuptools import build_meta as b; b.build_sdist(".."); b.build_wheel("..")',
        cwd=folder / 'source')
    return folder


@pytest.fixture(scope='module')
def installed(built, tmp_path_factory):
    """The bin folder of an environment with the wheel; all other packages come from this environment."""
    environment = tmp_path_factory.mktemp('environment')
    venv.create(environment, symlinks=True)
    [wheel] = built.glob('*.whl')
    packages = sysconfig.get_path('purelib', vars={'base': str(environment), 'platbase': str(environment)})
    programs = environment / 'bin'
    run(sys.executable, '-m', 'pip', '--python', programs / 'python', 'install', '--no-deps', wheel, cwd=built)
    # These paths come last, so an editable installation among them does not count.
    others = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (pathlib.Path(packages) / 'others.pth').write_text(others)
    return programs


def test_the_wheel_works_from_another_directory(installed, built, tmp_path):
    where = dict(cwd=tmp_path, PYTHONPATH='')
    assert str(ROOT) not in run(installed / 'python', '-c', 'import cifar10; print(cifar10.__file__)', **where)
    small = ['--dataset=shapes', '--data_dir=data', '--batch_size=8', '--tower_device=cpu']
    train = [installed / 'cifar10-train', *small, '--train_dir=run', '--max_steps=20', '--summary_steps=10']
    trained = run(*train, **where)
    assert 'saved      run/model.ckpt-20' in trained
    of_run = json.loads((tmp_path / 'run' / 'config.json').read_text())['command']
    next_line = re.search(r'^next +(.*) --run_once evaluates', trained, re.M)[1]
    for command in (f'{of_run} --max_steps=21', f'{next_line} --run_once'):
        run('sh', '-c', command, **dict(where, cwd=built))
    evaluate = [installed / 'cifar10-eval', '--checkpoint_dir=run', '--data_dir=data']
    assert 'precision @ 1' in run(*evaluate, '--run_once', '--eval_dir=eval', **where)
    run(*evaluate, '--export_dir=model', **where)
    assert (tmp_path / 'model' / 'saved_model.pb').exists()
    explained = run(installed / 'cifar10-train', *small, '--train_dir=other', '--explain', '--max_steps=20', **where)
    assert 'examples/s' in explained or 'images/s' in explained
    with tensorboard(tmp_path / 'run') as get:
        assert get('data/plugin/scalars/tags')['train']


def test_the_source_archive_is_complete_and_passes_its_tests(built, tmp_path):
    [archive] = built.glob('*.tar.gz')
    with tarfile.open(archive) as members:
        members.extractall(tmp_path, filter='data')
    [source] = tmp_path.iterdir()
    assert [name for name in tracked() if not (source / name).exists()] == ['.gitignore']
    run(sys.executable, '-m', 'pytest', '-n', '0', 'tests/test_towers.py', 'tests/test_updates.py', cwd=source,
        PYTHONPATH=str(source))
