#!/bin/bash
exec vllm serve /models/given --tensor-parallel-size 2 --distributed-executor-backend ray
