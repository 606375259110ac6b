"""A gRPC server on loopback: `grpc_server.py PORT CERTIFICATE KEY`. `Throttled` is refused with a time, and everything else is answered."""

import concurrent.futures
import sys

import grpc

PORT, CERTIFICATE, KEY = sys.argv[1:]


class Calls(grpc.GenericRpcHandler):
    def service(self, details):
        def answer(request, context):
            if details.method.endswith("/Throttled"):
                context.set_trailing_metadata((("grpc-retry-pushback-ms", "60000"),))
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the server's own")
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[Calls()])
pair = (open(KEY, "rb").read(), open(CERTIFICATE, "rb").read())
server.add_secure_port(f"127.0.0.1:{PORT}", grpc.ssl_server_credentials([pair]))
server.start()
print("listens", flush=True)
server.wait_for_termination()
