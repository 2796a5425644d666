// Package claim is the engine of idempotency, shared by HTTP and gRPC.
//
// A claim is a lock on the key of a request, taken with an orphan (core.WithOrphan). It ends in one
// of three ways:
//
//   - Complete seals the key with the answer, which every retry gets.
//   - Free releases the key: nothing was done, and a retry runs.
//   - LeaveUnknown, or the death of the process, leaves an orphan: nobody can know what was done. A
//     retry gets [*UnknownError] until somebody adopts the orphan or an operator decides. If the
//     orphan's tag says RunAgain, a retry with the same payload adopts it and runs.
//
// So a fresh request costs two round trips and a retry one.
package claim
