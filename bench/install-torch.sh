#!/bin/sh
# Installs PyTorch from PyPI for the benchmarks, into the virtual environment build/torch. Needs python3 with venv and
# pip, and 6 GB of disk. To compile, PyTorch also needs a C++ compiler and Python's headers (Debian: g++, python3-dev).
set -eu
cd "$(dirname "$0")/.."
python3 -m venv build/torch
build/torch/bin/pip install torch==2.15.0
