"""Loads the fixtures where tests run, and not in the process that only hands them out, which needs no TensorFlow."""


def pytest_sessionstart(session):
    """Registers fixtures.py, unless the tests run in other processes."""
    plugins = session.config.pluginmanager
    if not plugins.hasplugin('dsession'):  # pytest-xdist's
        plugins.import_plugin('tests.fixtures')
