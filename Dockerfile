# The analysis alone, without torch: docker build -t commtrace . && docker run --rm -v "$PWD/traces:/runs:ro" commtrace my-run
FROM python:3.13-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY commtrace commtrace
COPY analysis analysis
COPY profiling profiling
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[remote]'

FROM python:3.13-slim
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --no-compile /wheels/*.whl
RUN useradd --create-home commtrace
USER commtrace
WORKDIR /runs
ENTRYPOINT ["commtrace"]
