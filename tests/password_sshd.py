"""An SSH server that takes a password and no key, and runs commands on this machine."""

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import paramiko

PASSWORD = "correct horse"


@dataclass
class PasswordSshd(paramiko.ServerInterface):
    """A server on the loopback.

    Attributes:
        passwords: what it was offered.
        environment: of the commands that it runs.
    """

    key: paramiko.PKey = field(default_factory=paramiko.ECDSAKey.generate)
    passwords: list[str] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._transports: list[paramiko.Transport] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """End it, and its connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for transport in self._transports:
            transport.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            transport = self.transport_over(client)
            transport.add_server_key(self.key)
            self._transports.append(transport)
            transport.start_server(threading.Event(), self)

    def transport_over(self, client: socket.socket) -> paramiko.Transport:
        """Return what speaks SSH with a client."""
        return paramiko.Transport(client)

    def get_allowed_auths(self, username: str) -> str:
        return "publickey,password"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_FAILED

    def check_auth_password(self, username: str, password: str) -> int:
        self.passwords.append(password)
        return paramiko.AUTH_SUCCESSFUL if password == PASSWORD else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._run, args=(channel, command), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: bytes) -> None:
        process = subprocess.Popen(
            ["sh", "-c", command.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(self.environment),
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        threading.Thread(target=self._feed, args=(channel, process), daemon=True).start()
        with contextlib.suppress(EOFError, OSError):  # who asked has gone
            while data := os.read(process.stdout.fileno(), 65536):
                channel.sendall(data)
            channel.send_exit_status(process.wait())
            channel.close()

    @staticmethod
    def _feed(channel: paramiko.Channel, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):  # the command has ended
            while data := channel.recv(65536):
                process.stdin.write(data)
                process.stdin.flush()
            process.stdin.close()
