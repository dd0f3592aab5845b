"""Where the algorithms are known from."""

BRUCK = (
    "J. Bruck et al.: Efficient algorithms for all-to-all communications in multiport message-passing systems, "
    "IEEE TPDS 8(11), 1997"
)
CHAN = (
    "E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: Collective communication: theory, practice, and "
    "experience, CCPE 19(13), 2007"
)
HENSGEN = "D. Hensgen, R. Finkel, U. Manber: Two algorithms for barrier synchronization, IJPP 17(1), 1988"
INTERCOM = "M. Barnett et al.: Interprocessor collective communication library (InterCom), SHPCC 1994"
MPI = "MPI Forum: MPI: a message-passing interface standard, 1994; the definitions of the collectives"
MSCCLPP = "A. Shah et al.: MSCCL++: rethinking GPU communication abstractions, arXiv:2504.09014, 2025; all pairs"
OPEN_MPI = "Open MPI, coll/base: allreduce, allgather_reduce"
PATARASUK = (
    "P. Patarasuk, X. Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009"
)
RABENSEIFNER = "R. Rabenseifner: Optimization of collective reduction operations, ICCS 2004"
SANDERS = (
    "P. Sanders, J. Speck, J. L. Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, "
    "Parallel Computing 35(12), 2009"
)
THAKUR = (
    "R. Thakur, R. Rabenseifner, W. Gropp: Optimization of collective communication operations in MPICH, "
    "IJHPCA 19(1), 2005"
)
WATTS = "J. Watts, R. van de Geijn: A pipelined broadcast for multidimensional meshes, PPL 5(2), 1995"
