"""Fixtures: one shared server for tests that only ask, and a factory for the rest."""

import pytest

from sluice_server import Server

CONTEXT = 2048


@pytest.fixture(scope="session")
def log_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def server(log_folder):
    """The default model with a short context. Tests must leave it idle."""
    running = Server(log_folder / "shared.log", "--context", CONTEXT)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def start(log_folder, request):
    """start(flags...) -> a server of this test alone, stopped at its end."""
    servers = []

    def begin(*flags, **kwargs) -> Server:
        log = log_folder / f"{request.node.name[:60].replace('/', '_')}-{len(servers)}.log"
        servers.append(Server(log, *flags, **kwargs))
        return servers[-1].start()

    begin.servers = servers
    yield begin
    for running in servers:
        running.stop()


@pytest.fixture(scope="session")
def client(server):
    with server.client() as c:
        yield c


@pytest.fixture(scope="session")
def model(server):
    return server.model_id()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds the end of the servers' logs to the report of a failed test."""
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    arguments = getattr(item, "funcargs", {})
    used = [arguments["server"]] if "server" in arguments else []
    used += getattr(arguments.get("start"), "servers", [])
    used += getattr(arguments.get("processes"), "started", [])
    used += getattr(arguments.get("cluster"), "started", [])
    for running in used:
        if running.log_file.exists():
            report.sections.append((f"log of {' '.join(running.flags)}", running.log_tail()))
