"""One worker of a service: a process that serves, and does what its service says."""

import asyncio
import logging
import os
import socket

from service.app import Workers
from service.server.line import (
    CountsAsked,
    CountsTold,
    Line,
    Reload,
    ServesNow,
    Stop,
    receive_begin,
)
from service.server.serving import Process, listen, serve_here
from service.telemetry.logs import log_to_stderr
from service.telemetry.siblings import Subject

logger = logging.getLogger("forage")

SERVICE_SECONDS = 3.0
"""Longest wait, in seconds, for what all workers have counted."""


async def work_until_stopped(descriptor: int) -> int:
    """Serve as the other end of a line says, until it or a signal stops this worker."""
    end = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    begin = await asyncio.to_thread(receive_begin, end)
    settings = begin.read_settings()
    log_to_stderr(settings.log_level, settings.log_format, settings.token_keys)
    line = await Line.over(end)

    async def all_workers(about: Subject) -> list[bytes]:
        return await line.ask(about, SERVICE_SECONDS)

    async def obey(process: Process) -> None:
        services, served = process.services, process.services.log.replicas
        if begin.trainer_key:
            services.access.accept(begin.trainer_key, "trainer", "admin")
        telling = asyncio.create_task(_tell_once_ready(line, process))
        try:
            async for message in line.messages():
                match message:
                    case Stop():
                        process.server.stop()
                    case Reload():
                        process.signals.reload()
                    case CountsAsked(number, about):
                        found = services.telemetry.answer(about, served.policies)
                        line.send(CountsTold(number, [found]))
                    case _:
                        raise TypeError(f"a worker is sent no {type(message).__name__}")
        finally:
            telling.cancel()
            if not process.server.should_exit:
                logger.error("nobody says any more what this worker is to do: it stops")
                process.server.stop()

    workers = Workers(begin.count, all_workers, begin.checkpoints)
    try:
        if begin.early:
            with listen(settings) as listener:
                await serve_here(settings, listener, obey, workers)
        else:
            await serve_here(settings, None, obey, workers)
    finally:
        line.close()
    return 0


async def _tell_once_ready(line: Line, process: Process) -> None:
    await process.ready.wait()
    line.send(ServesNow(list(process.services.log.replicas.states)))
