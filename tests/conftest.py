"""Loads the fixtures in the processes that run tests, and marks the course's tests and the examples with `lessons`."""
import re

import pytest

_LESSONS = re.compile(r'test_(lesson\w*|learn|exercises|notebooks|examples|resnet18)\.py')


def pytest_sessionstart(session):
    """Registers fixtures.py, unless other processes run the tests, because this process then needs no TensorFlow."""
    plugins = session.config.pluginmanager
    if not plugins.hasplugin('dsession'):  # pytest-xdist's
        plugins.import_plugin('tests.fixtures')


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks unmarked tests of the course and the examples with `lessons`."""
    for item in items:
        if _LESSONS.fullmatch(item.path.name) and not any(map(item.get_closest_marker, ('stress', 'timing', 'gpu'))):
            item.add_marker('lessons')
