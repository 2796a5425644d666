// Package ginlock makes a Gin route run once per idempotency key, or one request at a time per key.
//
//	locker, err := core.New(redisbackend.New(redisClient))
//	core.SetDefault(locker)
//
//	r.Use(ginlock.ByHeader("Idempotency-Key"))                               // a retried POST runs once
//	r.POST("/orders/:id/grab", ginlock.LockByKey("order:{param.id}"), grab)  // one at a time; 07 is not 7
//
// The middlewares are those of package idempotency, which has the rules and the options:
// [idempotency.Wait], [idempotency.Retain], [idempotency.Recover] and the others. [Principal], [By]
// and [LockBy] get a *gin.Context here.
//
// Three things to know:
//
//   - The handler's context is c.Request.Context(), and not c. It carries the claim or the lock. If
//     it carries a claim, it does not end when the client hangs up.
//   - The principal is the name that gin.BasicAuth left under gin.AuthUserKey, unless [Principal]
//     is set. If that key holds anything but a name, the request is refused with 500.
//   - The order is: Recovery, compression, authentication, ginlock, error writer, handler.
//
// What the order means for other middlewares:
//
//   - One that makes the answer from c.Errors or c.Keys belongs inside. Outside, its answer is not
//     recorded and a retry is refused. But a status that the handler sets, as c.AbortWithError
//     does, is its answer: a retry gets that status without a body.
//   - One that begins and commits a database transaction belongs inside, or the lock ends before
//     COMMIT.
//   - One outside that reads the body must use ShouldBindBodyWith, parse the body as a form, or put
//     it back.
//   - One outside that holds answers back, for example to sign them, must implement WriteHeaderNow
//     in its writer. With the one of Gin's writer, a 200 without a body is sent before the outer
//     writer can set a header.
//   - The Middlewares of GinServerOptions of oapi-codegen are not in Gin's chain: the last handler
//     calls them. Such a request is refused with 500. Pass ours to r.Use, r.Group or the route.
//
// Requests that match no route run unprotected, even if engine.NoRoute has a handler. Give it a
// route: r.POST("/*path", …). If such a request may have had an effect, a warning is logged once.
package ginlock
