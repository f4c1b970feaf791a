// Package frame reads the WorkerFrame messages of load reporters and makes the
// RouterFrame messages for them, of sglang.router.loadmonitor.v1.
//
// Reading needs neither reflection nor memory and agrees with protobuf-go, but
// for frames of more than one payload: no encoder writes them, and they are
// refused. A report is handed on as bytes, for package loadreport.
package frame
