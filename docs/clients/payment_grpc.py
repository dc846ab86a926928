"""Asks for the result of a payment at equal intervals until it is final, over gRPC. waterclock asks; this program only looks on.

Needs what tasks_grpc.py needs, which stands beside it.

    python3 payment_grpc.py 127.0.0.1:8080 https://pay.example/payments/17 payment-17

The payment service answers 202 or 425 while the result is not final, and 200 once it is.
"""

import sys
import time

import grpc
from google.protobuf.duration_pb2 import Duration
from tasks_grpc import ENDED, patient
from waterclock.v1 import tasks_pb2 as wc
from waterclock.v1.tasks_pb2_grpc import TasksStub


def main(address, url, payment):
    with grpc.insecure_channel(address) as channel:
        tasks = TasksStub(channel)
        created = patient(tasks.CreateHttpTask, wc.CreateHttpTaskRequest(
            project="shop",
            group="payments",
            request_id=payment,  # one payment, one task: the program may be started again
            method="GET",
            url=url,
            retry=wc.RetryInfo(count=3, interval=5),  # for failures, which are no rounds
            options=wc.Options(
                delay=Duration(seconds=1),
                poll=wc.Poll(interval=Duration(seconds=1), rounds=360),
            ),
        ))
        while True:
            task = patient(tasks.GetTask, wc.GetTaskRequest(task_id=created.task_id))
            if task.task_status in ENDED:
                break
            time.sleep(0.2)
        print(wc.TaskStatus.Name(task.task_status), "after", task.rounds, "rounds")


if __name__ == "__main__":
    main(*sys.argv[1:])
