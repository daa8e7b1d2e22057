# Two images: `docker build .` is the service, `docker build --target trainer .` trainer and
# simulator client. Only the second has torch.
#
# torch comes from pip's default index, on Linux with its GPU libraries. For a trainer a few
# gigabytes smaller, point pip at an index or a folder with CPU builds:
#   docker build --target trainer --build-arg PIP_EXTRA_INDEX_URL=... .
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS packages
ARG PIP_EXTRA_INDEX_URL=
ARG PIP_FIND_LINKS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN command -v make || (apt-get update && apt-get install -y --no-install-recommends make)
WORKDIR /src

# What Forage needs is a layer of its own: it changes with pyproject.toml, not with the code.
# These are the steps of `make install`, with stand-ins for the packages.
COPY Makefile pyproject.toml constraints.txt ./
COPY clients/python/pyproject.toml clients/python/
COPY service/__init__.py service/
RUN mkdir simulator_client clients/python/forage_client \
    && touch README.md LICENSE simulator_client/__init__.py \
        clients/python/README.md clients/python/forage_client/__init__.py \
    && make install VENV=/opt/forage EXTRAS='archive postgres' EDITABLE=

FROM packages AS packages-of-trainer
RUN make install VENV=/opt/forage EXTRAS='sim train' EDITABLE=

FROM packages AS code
COPY README.md LICENSE ./
COPY service service
COPY simulator_client simulator_client
COPY clients/python clients/python
RUN /opt/forage/bin/python -m pip wheel --no-deps --wheel-dir /wheels ./clients/python .

FROM packages AS installed
COPY --from=code /wheels /wheels
RUN /opt/forage/bin/python -m pip install --no-deps --no-index --force-reinstall /wheels/*.whl

FROM packages-of-trainer AS installed-of-trainer
COPY --from=code /wheels /wheels
RUN /opt/forage/bin/python -m pip install --no-deps --no-index --force-reinstall /wheels/*.whl

FROM ${BASE_IMAGE} AS runtime
LABEL org.opencontainers.image.title="Forage" \
      org.opencontainers.image.description="An online recommendation service that learns from every click" \
      org.opencontainers.image.licenses="Apache-2.0"

# The root may be read-only: what is written goes to /data (kept) and /tmp.
# The folder is made before the volume is declared, so that a new volume belongs to the user.
RUN mkdir /data && chown 10001:10001 /data && chmod 700 /data
VOLUME /data
WORKDIR /data
USER 10001:10001

# Heads are small: threads inside one solve cost more than they give, and requests are parallel already.
ENV PATH=/opt/forage/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    OPENBLAS_NUM_THREADS=1 \
    OMP_NUM_THREADS=1 \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    FORAGE_STORE=sqlite:////data/forage.db
ENTRYPOINT ["forage"]

FROM runtime AS trainer
COPY --from=installed-of-trainer /opt/forage /opt/forage
CMD ["train", "--follow"]

FROM runtime AS service
COPY --from=installed /opt/forage /opt/forage

# It listens on every address of the container, and starts only with keys (FORAGE_KEYS, docs/keys.md)
# or with FORAGE_OPEN=true, where a private network is the guard.
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(f\"http://127.0.0.1:{os.environ.get('FORAGE_PORT', '8000')}/healthz\", timeout=2)"]
CMD ["serve", "--host", "0.0.0.0"]
