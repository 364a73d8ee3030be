"""HTTPS as clients use it: curl, Python and the OpenAI client, with a certificate made here."""

import json
import shutil
import signal
import socket
import ssl
import subprocess
import time

import httpx
import openai
import pytest

from sluice_server import HOST, Server, model_file, run_sluice

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


def make_certificate(folder, name: str):
    """A certificate for this host that vouches for itself, and its key; always the same files."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{HOST}",
         "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


class SecureServer(Server):
    def __init__(self, log, folder):
        self.certificate, self.key = make_certificate(folder, "first")
        super().__init__(log, "--context", 1024, "--https-certificate", self.certificate,
                         "--https-key", self.key)

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def request(self, method, path, body=None, headers=None, timeout=300):
        try:
            with httpx.Client(verify=self.trust(), timeout=timeout) as client:
                answer = client.request(method, self.url + path, content=body, headers=headers)
        except httpx.TransportError as error:
            raise OSError(str(error)) from error  # as urllib, which start() knows
        return answer.status_code, answer.content, answer.headers

    def peer_name(self) -> str:
        """Whose certificate a new connection is shown, whoever vouches for it."""
        with socket.create_connection((HOST, self.port), timeout=20) as plain:
            with self.trust().wrap_socket(plain, server_hostname=HOST) as secure:
                return dict(pair[0] for pair in secure.getpeercert()["subject"])["commonName"]


@pytest.fixture(scope="module")
def secure(log_folder, tmp_path_factory):
    running = SecureServer(log_folder / "https.log", tmp_path_factory.mktemp("https"))
    try:
        yield running.start()
    finally:
        running.stop()


def ask(server, stream: bool) -> str:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0,
                       http_client=httpx.Client(verify=server.trust())) as client:
        answer = client.chat.completions.create(
            model=server.model_id(), messages=[{"role": "user", "content": "Name a colour."}],
            max_tokens=16, temperature=0, stream=stream)
        if not stream:
            return answer.choices[0].message.content
        return "".join(part.choices[0].delta.content or "" for part in answer if part.choices)


def test_the_openai_client(secure):
    assert ask(secure, stream=True)
    assert ask(secure, stream=False)
    secure.wait_idle()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_curl(secure):
    body = json.dumps({"model": secure.model_id(), "stream": True, "max_tokens": 8,
                       "messages": [{"role": "user", "content": "Hi"}]})
    command = ["curl", "-sN", secure.url + "/v1/chat/completions", "-d", body, "-H",
               "Content-Type: application/json"]
    told = subprocess.run([*command, "--cacert", secure.certificate], capture_output=True,
                          text=True, timeout=60)
    assert told.returncode == 0 and told.stdout.endswith("data: [DONE]\n\n")
    strange = subprocess.run(command, capture_output=True, timeout=60)
    assert strange.returncode == 60, "a certificate that nobody vouches for"
    plain = subprocess.run(["curl", "-s", f"http://{HOST}:{secure.port}/health"],
                           capture_output=True, text=True, timeout=60)
    assert json.loads(plain.stdout)["error"]["code"] == "tls_required"


def test_a_hangup_changes_the_certificate_and_cuts_nobody_off(secure):
    with httpx.Client(verify=secure.trust()) as before:
        assert before.get(secure.url + "/health").status_code == 200
        assert secure.peer_name() == "first"
        make_certificate(secure.certificate.parent, "second")
        secure.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while True:
            try:
                if secure.peer_name() == "second":
                    break
            except ssl.SSLError:
                pass  # the old one still, which the new file does not vouch for
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert before.get(secure.url + "/health").status_code == 200
    secure.key.write_text("no key")
    secure.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert secure.peer_name() == "second"
    assert "the certificate stays as it is" in secure.log_tail()


def test_files_that_cannot_be_used_end_the_start(tmp_path):
    certificate, _ = make_certificate(tmp_path, "alone")
    ended = run_sluice("serve", model_file(), "--kv-memory", "64MiB", "--context", 256,
                       "--https-certificate", certificate, "--https-key", tmp_path / "none.pem")
    assert ended.returncode == 2 and "none.pem cannot be used" in ended.stderr
