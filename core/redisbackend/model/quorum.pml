/*
 * The quorum of package redisbackend: leases and tokens. Three nodes keep one key. Each has an owner
 * with its lease, and the largest number that it promised. README.md says what is modelled and what
 * is not, and check runs every configuration.
 *
 * A comment "rule N: FILE" names the file of the package in which a comment "rule N" marks the same
 * step. TestModel_NamesItsLines keeps the two in step.
 */

#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef EXTENDS
#define EXTENDS 0 /* of attempt 1 */
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#ifndef COPIES
#define COPIES 0 /* late second copies of an Acquire */
#endif
#ifdef LATERELEASE /* copies of Release may come at any time */
#define RELEASES true
#else
#define RELEASES false
#endif
#ifdef REVOKES
#define OPERATOR true
#else
#define OPERATOR false
#endif
/* Leases may end at any time. Then tokens follow the order of calls, not that of holders. */
#ifdef LEASESBREAK
#define BREAKS true
#else
#define BREAKS false
#endif

/* The rules that check switches off, one at a time. */
#ifdef NOFLOOR
#define NUMBER(p, t) ((p) + 1)
#elif defined(FLOORNEW) /* R4 */
#define NUMBER(p, t) ((p) != 0 -> (p) + 1 : MAX(1, t))
#else
#define NUMBER(p, t) MAX((p) + 1, t)
#endif
#ifdef NOABSTAIN
#define ABSTENTION false
#else
#define ABSTENTION true
#endif
#ifdef GUARDBYCALLER /* S1: attempt 1 has a longer TTL than the others */
#define SHORTER(c) ((c) != 1)
#else
#define SHORTER(c) false
#endif
#ifdef LATEEXTEND /* R1 */
#define RENEWS(c) true
#define RENEWABLE(c) a[c].renewing
#else
#define RENEWS(c) LIVE(c)
#define RENEWABLE(c) false
#endif
#ifdef SAMEOWNER /* R2 */
#define SAME(a, b) ((a) == (b) || ((a) == 1 && (b) == 3) || ((a) == 3 && (b) == 1))
#else
#define SAME(a, b) ((a) == (b))
#endif
#ifdef NOLATECHECK /* R3 */
#define INTIME(c) (a[c].passed == 0 || a[c].phase == AGREES)
#else
#define INTIME(c) (a[c].passed == 0)
#endif
#ifdef COUNTAGAIN /* S11 */
#define COUNTS true
#else
#define COUNTS false
#endif
#ifdef ONEACCEPTS /* S12 */
#define ACCEPTED(m) ((m) != 0)
#else
#define ACCEPTED(m) MAJORITY(m)
#endif
#ifdef AGAINEARLY /* S13 */
#define EARLY true
#else
#define EARLY false
#endif
#ifdef ANYOWNER
#define OWNERONLY false
#else
#define OWNERONLY true
#endif

#define MAX(a, b)   ((a) > (b) -> (a) : (b))
#define BIT(n)      (1 << (n))
#define IN(m, n)    (((m) >> (n)) & 1)
#define MAJORITY(m) ((m) == 3 || (m) >= 5)

/* Clocks differ by at most TOLERANCE from a node's. CHAIN is more than all promise + 1 of a run. JUMP
 * is how far clocks move while a node abstains: it is more than 2 * TOLERANCE. */
#define TOLERANCE 1
#define CHAIN     5
#define JUMP      (2 * TOLERANCE + CHAIN + 1)

byte tick = 1;     /* time. It never runs back. */
byte skew;         /* of node 2's clock */
#define NOW(n) (tick + ((n) == 2 -> skew : 0))

typedef Node {
	byte owner;    /* an attempt, or 0 */
	byte lease;    /* the number of the request that gave it or lengthened it */
	byte promise;
	byte started;  /* 1: no time has passed since; 2: it has */
	byte gave, till; /* whose lease it had at its start, and which. Earlier ones are over. */
};
Node node[3];

typedef Attempt {
	byte phase;    /* see below */
	byte time;     /* the caller's wall clock */
	byte sent;     /* requests for a lease: Acquire is 1, the first Extend 2 */
	byte passed;   /* of these, how many deadlines are over by the caller's monotonic clock */
	byte until;    /* the request whose deadline is the holder's */
	byte token;
	byte before;   /* the largest token that was given before this attempt began */
	byte yes;      /* nodes that granted, lengthened */
	byte free;     /* nodes that said FREE to Extend */
	byte accepts;
	byte number[3];
	/* Messages under way: nodes. */
	byte acquire, accept, extend, again, release;
	bit renewing, late;
};
Attempt a[4];

#define IDLE    0
#define ASKS    1
#define AGREES  2 /* promise(t) */
#define HOLDS   3
#define OVER    4

#define LIVE(c)     (a[c].passed < a[c].until)
#define HOLDER(c)   (a[c].phase == HOLDS && LIVE(c))
#define OTHER(c)    (((c) != 1 && HOLDER(1)) || ((c) != 2 && HOLDER(2)) || ((c) != 3 && HOLDER(3)))
#define TAKEN(t)    (a[1].token == (t) || a[2].token == (t) || a[3].token == (t))
/* A node is young until the lease that it had at its start is over: LONGEST has passed. */
#define PASSED(n)   (a[node[n].gave].passed >= node[n].till)
#define YOUNG(n)    (ABSTENTION && (node[n].started == 1 || !PASSED(n)))
/* S1: the node waits for the caller's TTL. The lease may be longer. */
#define ABSTAINS(n, c) (YOUNG(n) && !(SHORTER(c) && node[n].started == 2 && node[n].gave == 1))

byte largest, restarts, copies, revoked;

/* A lease gets longer, never shorter. */
inline lend(n, c, k) {
	node[n].lease = (SAME(node[n].owner, c) -> MAX(node[n].lease, k) : k);
	node[n].owner = c
}

inline unlend(n) {
	node[n].owner = 0;
	node[n].lease = 0
}

/* start begins a new run of a node's server. */
inline start(n) {
	restarts++;
	node[n].started = 1;
	node[n].gave = node[n].owner;
	node[n].till = node[n].lease
}

/* settle forgets what does not matter any more, so that states are alike. */
inline settle(c) {
	a[c].accept = 0; a[c].yes = 0; a[c].accepts = 0;
	a[c].number[0] = 0; a[c].number[1] = 0; a[c].number[2] = 0
}

/* holds counts the attempt as holder of token t. */
inline holds(c, t) {
	a[c].phase = HOLDS;
	a[c].until = 1;
	settle(c);
	assert(BREAKS || revoked != 0 || !OTHER(c)); /* one holder */
	assert(BREAKS -> (t) > a[c].before && !TAKEN(t) : (t) > largest); /* tokens go up */
	a[c].token = (BREAKS -> (t) : 0);
	largest = MAX(largest, t)
}

/* ends forgets an attempt that is over. Its leases protect nobody, so they may end at any time. */
inline ends(c) {
	a[c].phase = OVER;
	a[c].passed = a[c].sent; a[c].until = 0;
	a[c].release = (RELEASES -> 7 : 0);
	a[c].acquire = 0; a[c].time = (COPIES > 0 -> a[c].time : 0);
	a[c].extend = 0; a[c].free = 0; a[c].renewing = 0; a[c].late = 0;
	settle(c)
}

#define AGREED(c, x, y) (IN(a[c].yes, x) && IN(a[c].yes, y) && a[c].number[x] == a[c].number[y])
#define EQUAL(c)    (AGREED(c, 0, 1) || AGREED(c, 0, 2) || AGREED(c, 1, 2))
#define MOST(c)     MAX(a[c].number[0], MAX(a[c].number[1], a[c].number[2]))

/* Attempts begin in order. With INTURN, the one before must be over or hold the key. The third is the
 * first caller's second one. */
#ifdef INTURN
#define FOLLOWS(c) (a[(c) - 1].phase >= HOLDS)
#else
#define FOLLOWS(c) (a[(c) - 1].phase != IDLE)
#endif
#define BEGINS(c) (a[c].phase == IDLE && ((c) == 1 || FOLLOWS(c)) && ((c) != 3 || a[1].phase == OVER))

/* rule 1: quorum_acquire.go */
inline begin(c, t) {
	a[c].phase = ASKS;
	a[c].time = t;
	a[c].sent = 1;
	a[c].before = (BREAKS -> largest : 0);
	a[c].acquire = 7
}

proctype Caller(byte c) {
	byte t;
end:	do
	:: d_step { BEGINS(c) -> begin(c, tick + 1) }
	:: d_step { BEGINS(c) -> begin(c, tick - 1) }
	:: d_step { BEGINS(c) && skew != 0 -> begin(c, tick + 1 + skew) }
	/* rule 3: quorum_acquire.go, quorum_vote.go */
	:: d_step { a[c].phase == ASKS && EQUAL(c) && INTIME(c) ->
		t = (AGREED(c, 0, 1) || AGREED(c, 0, 2) -> a[c].number[0] : a[c].number[1]);
		holds(c, t); t = 0 }
	:: d_step { a[c].phase == ASKS && MAJORITY(a[c].yes) && !EQUAL(c) && a[c].passed == 0 ->
		a[c].phase = AGREES;
		a[c].accept = a[c].yes }
	/* rule 4: quorum_acquire.go */
	:: d_step { a[c].phase == AGREES && ACCEPTED(a[c].accepts) && INTIME(c) ->
		t = MOST(c); holds(c, t); t = 0 }
	/* Deadlines pass at any time. A release, a death and a time-out are no more than that. */
	:: d_step { a[c].passed < a[c].sent ->
		a[c].passed++;
		if
		:: !INTIME(c) && (a[c].phase == ASKS || a[c].phase == AGREES) -> ends(c)
		:: !RENEWABLE(c) && !LIVE(c) && a[c].phase == HOLDS -> ends(c)
		:: else
		fi }
	/* rule 7: quorum_lease.go
	 * Without late copies of Release, a deadline that passes is as good. */
	:: d_step { RELEASES && (a[c].phase == ASKS || a[c].phase == HOLDS) -> ends(c) }
	/* rule 6: quorum_lease.go */
	:: d_step { HOLDER(c) && c == 1 && a[c].sent <= EXTENDS && !a[c].renewing ->
		a[c].renewing = 1;
		a[c].late = (revoked == 7);
		a[c].sent++;
		a[c].extend = 7; a[c].yes = 0; a[c].free = 0 }
	:: d_step { a[c].phase == HOLDS && a[c].renewing && MAJORITY(a[c].yes) && a[c].until < a[c].sent && RENEWS(c) ->
		assert(BREAKS || revoked != 0 || LIVE(c) || !OTHER(c));
		assert(!a[c].late); /* what an operator released is not renewed */
		a[c].until = a[c].sent; a[c].yes = 0 }
	:: d_step { HOLDER(c) && a[c].renewing && a[c].until == a[c].sent && a[c].free != 0 ->
		a[c].again = a[c].again | a[c].free; a[c].free = 0 } /* rule 8: quorum_lease.go */
	:: d_step { a[c].renewing -> a[c].renewing = 0; a[c].yes = 0; a[c].free = 0 }
	od
}

/* The nodes are alike. So the first request may reach them in the order of their numbers. */
#define ALIKE(c, n) ((c) != 1 || skew != 0 || (n) == 0 || !IN(a[c].acquire, (n) - 1))

/* Link is what arrives at node n of attempt c. What never arrives is lost. */
proctype Link(byte c; byte n) {
end:	do
	/* rule 2: quorum_acquire.lua */
	:: d_step { IN(a[c].acquire, n) && ALIKE(c, n) ->
		a[c].acquire = a[c].acquire & ~BIT(n);
		if
		:: SAME(node[n].owner, c) -> lend(n, c, 1)
		:: node[n].owner == 0 && !ABSTAINS(n, c) && a[c].time <= NOW(n) + TOLERANCE && a[c].time >= NOW(n) - TOLERANCE ->
			node[n].promise = NUMBER(node[n].promise, a[c].time);
			lend(n, c, 1)
		:: else
		fi;
		if
		:: a[c].phase == ASKS && SAME(node[n].owner, c) ->
			a[c].yes = a[c].yes | BIT(n);
			a[c].number[n] = node[n].promise
		:: else
		fi }
	:: d_step { copies < COPIES && a[c].phase != IDLE && !IN(a[c].acquire, n) -> copies++; a[c].acquire = a[c].acquire | BIT(n) }
	/* rule 3: quorum_promise.lua */
	:: d_step { IN(a[c].accept, n) ->
		a[c].accept = a[c].accept & ~BIT(n);
		if
		:: (SAME(node[n].owner, c) || !OWNERONLY) && (node[n].promise >= MOST(c) || MOST(c) <= NOW(n) + TOLERANCE + CHAIN) ->
			node[n].promise = MAX(node[n].promise, MOST(c));
			a[c].accepts = a[c].accepts | BIT(n)
		:: else
		fi }
	/* rule 6: quorum_extend.lua */
	:: d_step { IN(a[c].extend, n) ->
		a[c].extend = a[c].extend & ~BIT(n);
		if
		:: COUNTS && node[n].owner == 0 && !YOUNG(n) -> lend(n, c, a[c].sent)
		:: SAME(node[n].owner, c) -> lend(n, c, a[c].sent)
		:: else
		fi;
		if
		:: !a[c].renewing
		:: else ->
			if
			:: SAME(node[n].owner, c) -> a[c].yes = a[c].yes | BIT(n)
			:: node[n].owner == 0 -> a[c].free = a[c].free | BIT(n)
			:: else
			fi
		fi }
	:: d_step { IN(a[c].again, n) ->
		a[c].again = a[c].again & ~BIT(n);
		if
		:: node[n].owner == 0 && (EARLY || !YOUNG(n)) -> lend(n, c, a[c].sent)
		:: SAME(node[n].owner, c) -> lend(n, c, a[c].sent)
		:: else
		fi }
	/* rule 7: release.lua, which has no number: it is not the quorum's alone */
	:: d_step { IN(a[c].release, n) ->
		a[c].release = a[c].release & ~BIT(n);
		if
		:: SAME(node[n].owner, c) -> unlend(n)
		:: else
		fi }
	od
}

#define RESTART(n) (restarts < RESTARTS && node[n].started == 0)

/* Server is what happens to node n itself. */
proctype Server(byte n) {
end:	do
	:: d_step { node[n].owner != 0 && (BREAKS || a[node[n].owner].passed >= node[n].lease) -> unlend(n) }
	/* rule 5: quorum.lua */
	:: d_step { node[n].promise != 0 && node[n].promise < NOW(n) - TOLERANCE -> node[n].promise = 0 }
	/* A node starts with its data, with none, or with older ones. It abstains:
	 * rule 8: quorum.go, quorum.lua, quorum_acquire.lua, quorum_extend.lua */
	:: d_step { RESTART(n) -> start(n) }
	:: d_step { RESTART(n) && node[n].promise != 0 -> start(n); node[n].promise = 0; unlend(n) }
	:: d_step { RESTART(n) && node[n].promise > 1 -> start(n); node[n].promise-- }
	:: d_step { RESTART(n) && node[n].promise > 1 && node[n].owner != 0 -> start(n); node[n].promise--; unlend(n) }
	:: d_step { node[n].started == 2 && !YOUNG(n) -> node[n].started = 0; node[n].gave = 0; node[n].till = 0 }
	/* An operator releases the first attempt. Its Acquire is not under way any more: README.md. */
	:: d_step { OPERATOR && !IN(revoked, n) && a[1].phase == HOLDS && !IN(a[1].acquire, n) ->
		revoked = revoked | BIT(n);
		if
		:: node[n].owner == 1 -> unlend(n)
		:: else
		fi }
	od
}

/* Clock moves all clocks on while nodes that have started abstain. */
proctype Clock() {
end:	do
	:: d_step { node[0].started == 1 || node[1].started == 1 || node[2].started == 1 ->
		tick = tick + JUMP;
		if
		:: node[0].started == 1 -> node[0].started = 2
		:: else
		fi;
		if
		:: node[1].started == 1 -> node[1].started = 2
		:: else
		fi;
		if
		:: node[2].started == 1 -> node[2].started = 2
		:: else
		fi }
	od
}

init {
	byte n, c;
	atomic {
#ifdef SKEW
		skew = 1;
#endif
		for (c : 1 .. ATTEMPTS) {
			run Caller(c);
			for (n : 0 .. 2) {
				run Link(c, n)
			}
		}
		for (n : 0 .. 2) {
			run Server(n)
		}
		run Clock();
		n = 0; c = 0
	}
}
