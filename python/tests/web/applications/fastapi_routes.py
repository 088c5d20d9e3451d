"""Paths and sockets of FastAPI that hold permits through a dependency."""

import asyncio
import os

from fastapi import BackgroundTasks, Depends, FastAPI, Request, WebSocket
from fastapi.responses import Response

import shmlimit as sl
from shmlimit.fastapi import Limited, LimitRefused, problem_response

segment = sl.open(os.environ["DIRECTORY"] + "/segment")
app = FastAPI()
app.add_exception_handler(LimitRefused, problem_response)
limited = Limited(segment["api"])
patient = Limited(segment["api"], timeout=3600)


@app.get("/", dependencies=[Depends(limited)])
def path() -> str:
    return "done"


@app.post("/patient", dependencies=[Depends(patient)])
async def echo_body(request: Request) -> Response:
    segment["handlers"].check()
    return Response(await request.body())


@app.get("/background", dependencies=[Depends(limited)])
def background(tasks: BackgroundTasks) -> str:
    tasks.add_task(asyncio.sleep, 3600)
    return "done"


@app.websocket("/echo", dependencies=[Depends(limited)])
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


@app.websocket("/closed", dependencies=[Depends(limited)])
async def closed(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()
    await asyncio.sleep(3600)
