#!/bin/bash
IMAGE=${IMAGE:-example.org/team/idle:3}
docker run -d --name idle --gpus all --network host -e KEPT=1 \
  -v /srv/models/given:/models/given:ro "$IMAGE" sleep infinity
