module github.com/loadplane/loadplane/e2e/keda

go 1.26.0

// Of KEDA only the client of external scalers is imported, which needs gRPC
// alone; its scalers need 3,000 packages more. The product is not among the
// requirements: both define the same messages, and a program that has both does
// not start.
require (
	github.com/kedacore/keda/v2 v2.21.0
	google.golang.org/grpc v1.85.0
)

require (
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260904194346-d0f1323225a4 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
