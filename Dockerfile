# syntax=docker/dockerfile:1
# Images for Debian 12, from the sources in this folder:
#
#   docker build --target develop -t trireme-develop .     everything that building and testing need
#   docker build --target package -t trireme-package .     the packages, in /trireme/build/packages
#   docker build -t trireme .                              the installed package with a LibTorch and a compiler
#
# On x86-64 pip needs the index of PyTorch's CPU builds: --build-arg PIP_EXTRA_INDEX_URL=<its address>
FROM debian:12 AS develop
ARG PIP_EXTRA_INDEX_URL
WORKDIR /trireme
COPY tools tools
RUN tools/setup build test
COPY . .

FROM develop AS package
RUN make package
RUN tools/libtorch /opt/libtorch

FROM debian:12 AS install
COPY --from=package /opt/libtorch /opt/libtorch
COPY --from=package /trireme/build/packages/*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends g++ cmake make pkg-config /tmp/trireme_*.deb
WORKDIR /home
ENTRYPOINT ["trireme"]
CMD ["--help"]
